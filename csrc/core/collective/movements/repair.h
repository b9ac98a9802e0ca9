// Repair: detects losses, fetches lost chunks from a neighbour or from the root, and places them.
// Donates chunks that others have lost: by multicast if several lack them, otherwise by stream or
// by one-sided reads. All thresholds of the policy are here and in
// protocol/{fetch_client,repair_server,repair_queue}.h.
//
// Threads: the lane's.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "collective/group_context.h"
#include "collective/reception.h"
#include "protocol/repair_queue.h"

namespace mcast {

inline constexpr size_t kMostAsked = 256u << 10;  // most bytes that one request may name

class Repair {
 public:
  // `streams` drives the operations that are revived to answer requests. All outlive this.
  Repair(GroupContext& context, Reception& reception, SmallOperations& small, Movement& streams)
      : g_(context),
        reception_(reception),
        small_(small),
        streams_(streams),
        heard_(context.size),
        bytes_(context.size) {}

  // Makes the operation's state machines: the client, and at a root the server.
  void start(Operation& op);
  // Requests lost chunks. `drained`: the transport's receive side was seen empty.
  void drive(Operation& op, Nanos now, bool drained);
  // At a root: answers the requests collected so far.
  void serve(Operation& op, Nanos now);
  // Sends the donations that wait for connections to accept more data.
  void serve_parked();
  // Requests chunks that were sent before this rank's post and are not staged; the socket was seen
  // empty.
  void fetch_early(Nanos now);

  using Frame = wire::FrameHeader;
  void on_fetch(const Frame& header, ConstBytes body, Nanos now);
  void on_fetch_data(const Frame& header, ConstBytes body, Nanos now);
  void on_fetch_grant(const Frame& header, ConstBytes body, Nanos now);
  void on_not_have(const Frame& header, ConstBytes body, Nanos now);
  void on_early_fetch(const Frame& header, ConstBytes body);
  void on_early_data(const Frame& header, ConstBytes body, Nanos now);
  // The bytes that Port::read() requested.
  void on_read(uint32_t token, ConstBytes bytes, Nanos now);

  // Reads of the operation are under way. Donors release their memory once all ranks are complete.
  bool reading(const Operation& op) const;
  void on_released(Sequence end) { parked_.on_released(end); }
  // By member: repair payload bytes received from it, and sent to it.
  const std::vector<std::pair<uint64_t, uint64_t>>& bytes() const { return bytes_; }

 private:
  // repair.cpp: requests
  void detect_losses(Operation& op, Nanos now, bool drained);
  bool accept(Operation& op, uint32_t stream, Member donor, uint32_t id, ChunkRange range,
              ConstBytes payload, Nanos now);
  // repair_donor.cpp: replies
  void donate(Operation& op, uint32_t stream, Member asker, uint32_t id,
              const std::vector<ChunkRange>& ranges);
  // Whether a donor may still read the block: the memory of a finished operation belongs to the
  // caller again, except a small root's own copy.
  static bool readable(const Operation& op, uint32_t stream);
  void send_fetch_data(Operation& op, uint32_t stream, Member asker, uint32_t id, ChunkRange range);
  void say_not_have(Sequence sequence, Member asker, uint32_t id, Member root,
                    std::span<const ChunkRange> ranges, bool coming);
  Operation* revive(Sequence sequence);
  void start_server(Operation& op);
  // repair_read.cpp: one-sided reads
  std::vector<ChunkRange> grant_reads(Operation& op, uint32_t stream, Member asker, uint32_t id,
                                      const std::vector<ChunkRange>& ranges);
  void drive_reads();
  // repair_early.cpp: before the post
  void send_early(Sequence sequence, Member asker);

  GroupContext& g_;
  Reception& reception_;
  SmallOperations& small_;
  Movement& streams_;
  RepairQueue parked_;
  std::vector<Nanos> heard_;  // by member: when it last answered a request
  std::vector<std::pair<uint64_t, uint64_t>> bytes_;
  // Granted reads: those to be posted, and those under way by token.
  struct Read {
    Sequence sequence;
    uint32_t id;
    Member donor, root;
    ChunkRange range;
    uint64_t address;
    uint32_t key;
  };
  std::deque<Read> reads_waiting_;
  std::map<uint32_t, Read> reads_running_;
  uint32_t next_read_ = 0;
  std::vector<ChunkRange> ranges_;  // scratch
};

}  // namespace mcast
