// This member's own stream as a root: how far it may send, which chunks to send again, and when to
// announce its position. Pure; time is an argument.
#pragma once

#include <algorithm>
#include <deque>
#include <map>

#include "base/ewma.h"
#include "base/types.h"
#include "protocol/announce.h"

namespace mcast {

struct SenderParams {
  Chunk chunks = 0;
  Chunk eager = 0;       // may be sent before any credit
  Chunk window = 1;      // most chunks beyond the least high-water mark that may wait in a queue
  Chunk widest = 0;      // most chunks beyond the least high-water mark; below `window`: that
  Chunk on_the_way = 0;  // measured by an earlier stream on the same path, see on_the_way()
  Chunk batch = 1;       // chunks of one send batch
  Chunk quantum = 1;     // progress after which receivers report: the window stays above it
  Nanos position_delay = kMilli;      // from stopping to the first Position
  Nanos position_max = 100 * kMilli;  // longest wait for credit that still flows
  int position_multicasts = 3;        // then by stream, once
};

class BlockSender {
 public:
  explicit BlockSender(const SenderParams& params);

  // The state after sending everything: for a stream whose operation is over.
  void set_all_sent() { sent_ = params_.chunks; }
  Chunk sent() const { return sent_; }
  bool all_sent() const { return sent_ == params_.chunks; }
  // Stops before `end` regardless of credit, until called again.
  void hold_at(Chunk end) { hold_ = end; }
  // Returns true if only the hold stops the stream: credit goes further.
  bool held() const { return hold_ < credit_end() && sent_ >= hold_; }
  // First chunk that may not be sent yet.
  Chunk allowed_end() const { return std::min(credit_end(), std::max(hold_, params_.eager)); }
  bool can_send() const { return resending() || sent_ < allowed_end(); }
  bool resending() const { return !resend_.empty(); }

  // Next run to send, at most `max` chunks: repairs first. `again`: it is a repair. Empty: nothing
  // may be sent.
  ChunkRange take(Chunk max, bool& again, Nanos now);
  // A taken run's tail was not accepted by the transport.
  void put_back(ChunkRange rest, bool again);

  // Least high-water mark, least limit and most losses over all receivers. The mark never
  // decreases; the limit may.
  void on_credit(Chunk high_water, Chunk limit, uint32_t lost, Nanos now);
  bool has_credit() const { return credited_; }
  Chunk high_water() const { return high_water_; }
  Chunk window() const { return window_.size; }
  // Chunks that the path holds in addition to its queues: delivery rate x shortest round trip.
  Chunk on_the_way() const { return on_the_way_; }

  // Multicasts these chunks again, each once, even if it is added several times before it is sent.
  void resend(ChunkRange range);

  // Returns whether and how Position{sent()} must be announced now; arms the next announcement.
  Announce position_due(Nanos now);
  Nanos deadline() const;

  uint64_t stalls() const { return stalls_; }
  uint64_t cuts() const { return cuts_; }

 private:
  Chunk credit_end() const;
  bool stopped() const { return sent_ > 0 && !can_send(); }
  // Returns true if a receiver may not know how far this root has sent.
  bool unknown() const;
  void learn_gap(Nanos now);
  void measure(Chunk high_water, Nanos now);
  void adapt(Chunk high_water, uint32_t lost, Nanos now);
  Nanos patience() const;

  SenderParams params_;
  Chunk sent_ = 0, high_water_ = 0, limit_ = 0;
  struct {
    Chunk size;  // chunks
    Chunk start = 0;
    uint32_t lost = 0;
    Nanos since = kNever;
  } window_;
  Chunk hold_ = 0xffffffff;
  bool credited_ = false;
  std::map<Chunk, Chunk> resend_;  // runs to send again, begin to end; disjoint, not adjacent
  uint32_t lost_ = 0;
  int announced_ = 0;
  Chunk told_ = 0;  // last position announced by stream
  Nanos next_position_ = kNever;
  struct {
    Nanos last = 0;  // when the high-water mark last grew
    Ewma gap;        // time between such moments, while nothing had to be announced
    int early = 0;   // consecutive announcements that were sent before chunks in flight had arrived
  } growth_;
  struct Sent {
    Chunk end;
    Nanos at;
  };
  std::deque<Sent> under_way_;  // batches not known to be received, a sample of all
  Nanos round_trip_ = kNever;   // the shortest measured
  Chunk on_the_way_ = 0;
  uint64_t stalls_ = 0, cuts_ = 0;
};

}  // namespace mcast
