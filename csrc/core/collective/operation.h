// One operation in flight at one member: its plan, its memory, its protocol machines, its state.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/landing.h"
#include "base/region.h"
#include "base/status.h"
#include "base/trace.h"
#include "collective/movements/exchange_run.h"
#include "collective/movements/reduce_run.h"
#include "collective/plan.h"
#include "protocol/active_streams.h"
#include "protocol/block_receiver.h"
#include "protocol/block_sender.h"
#include "protocol/chain.h"
#include "protocol/credit_tree.h"
#include "protocol/fetch_client.h"
#include "protocol/repair_server.h"
#include "protocol/skew_limiter.h"

namespace mcast {

class Movement;

// Arguments of an operation that is posted to the group. Unused slices are empty.
struct Post {
  Sequence sequence = 0;
  wire::Descriptor descriptor;
  Slice input;                 // this member's block (root of a broadcast; allgather)
  std::vector<Slice> outputs;  // by stream: destination; our own may be the input itself
  Nanos posted = 0;            // time of the call
  Nanos timeout = kNever;      // counted from `posted`
  std::function<void(const Status&)> done;
  std::optional<ReduceArgs> reduce;      // reductions; input and outputs are then empty
  std::optional<ExchangeArgs> exchange;  // exchanges, likewise
  // Called, if set, with (stream, bytes from its start that are final).
  std::function<void(uint32_t, uint64_t)> on_completed;
  size_t completed_step = 1;
  // If set, output bytes from the network are written there instead of to the outputs, and can be
  // read from there.
  std::shared_ptr<Landing> landing;
  // Calls on_completed, which must be set, if the final bytes of an output of `end` bytes have
  // passed a multiple of completed_step between `before` and `after`, or are all of it.
  void raise_completed(uint32_t stream, uint64_t before, uint64_t after, uint64_t end) const;
  // Other groups carry the data: this group only checks that all ranks make the same call, and ends
  // it for all. It is complete here when this is true; then call GroupCore::arrived().
  std::shared_ptr<const std::atomic<bool>> delegated;
  // Number of ranks whose inputs are in the result; lowered if some are missing. May be null.
  std::shared_ptr<std::atomic<uint32_t>> contributors;
  std::shared_ptr<Moments> moments;  // may be null
  // This member takes part in a reduction without its input.
  bool excused() const { return reduce && reduce->excused; }
  // Time at which the limit passes. It counts from the post, also while the operation waits to
  // start.
  Nanos deadline() const { return later(posted, timeout); }
  void note_contributors(uint32_t count) const {
    if (contributors && count < contributors->load()) contributors->store(count);
  }
};

// Start of an error text about an operation: names the operation, group and rank, the elapsed time
// and the limit.
std::string describe_failed(const Post& post, const std::string& group, Member self, Nanos now);

// The movements of an operation, in the order in which they are called. None: it has no data. An
// all_reduce has two: its contributions, and the streams of the results.
class Movements {
 public:
  void add(Movement& movement) { list_[count_++] = &movement; }
  Movement* const* begin() const { return list_.data(); }
  Movement* const* end() const { return list_.data() + count_; }

 private:
  std::array<Movement*, 2> list_{};
  uint8_t count_ = 0;
};

// Progress of a block on the ring path.
struct RingBlock {
  uint64_t available = 0;  // bytes received, in order
  uint64_t forwarded = 0;  // bytes sent to the successor
  bool listed = false;     // listed in Ring::turns
};

struct Operation {
  Post post;
  Plan plan;
  Movements movements;
  Nanos deadline = kNever;

  // Maps a member to its stream and back. A broadcast has one stream, its root's.
  std::optional<uint32_t> stream_of(Member m) const {
    const bool one = plan.one_root();
    if (one ? m != plan.descriptor.root : m >= plan.roots) return std::nullopt;
    return one ? 0 : m;
  }
  Member member_of(uint32_t stream) const;
  Member self = 0;

  // This member's block, at a root.
  struct Own {
    std::optional<uint32_t> stream;  // set at roots
    std::optional<BlockSender> sender;
    std::optional<RepairServer> repairs;
    std::vector<std::byte> kept;     // small: a copy of the block, until released
    bool started = false;            // small: the block is in `kept`; large: its turn has begun
    bool held_back = false;          // small: not sent yet, because late ranks could not keep it
    Nanos turn_idle_since = kNever;  // since when no root of our chain sends or begins to
    uint32_t silent_before = 0;      // earlier roots that were not heard at that time
    Nanos turn_retry = kNever;       // when to check again whether to skip a late root
    uint64_t stalls_counted = 0, cuts_counted = 0;
  } own;

  std::vector<BlockReceiver> receivers;  // by stream; our own is all set
  uint32_t receiving = 0;                // blocks not complete
  // By stream: no hole below; used only if completed ends are requested.
  std::vector<Chunk> final_to;
  std::optional<FetchClient> fetch;

  // Streams under way, and pacing of large blocks.
  struct Flow {
    ActiveStreams active;  // heard, and neither complete nor reported complete
    std::optional<CreditTree> credit;
    std::vector<Chunk> reported;  // by stream: high-water mark at our last credit report
    std::vector<Chunk> told;      // by stream: the limit reported then
    uint32_t groups = 0;          // groups that shared the receive budget then; 0: no report yet
    std::optional<Chains> chains;
    std::optional<SkewLimiter> skew;  // for roots that all send at once
    // Part of it was sent before this rank posted, so missing chunks say nothing about the path.
    bool late = false;
  } flow;

  // The ring path only.
  struct Ring {
    std::vector<RingBlock> blocks;  // by stream
    bool open = false;              // the successor has posted the operation
    std::deque<uint32_t> turns;     // streams that may have data to forward
  } ring;

  std::unique_ptr<ReduceRun> reduce;          // reductions
  std::unique_ptr<ExchangeRun> exchange;      // exchanges
  std::vector<std::shared_ptr<void>> grants;  // parts of its memory that others may be reading

  bool needs_release = false;  // finishes only when complete everywhere
  bool local_complete = false;
  Nanos first_byte = kNever, last_byte = kNever;  // of data, in or out
  bool finished = false;                          // result delivered, regions released

  // Owned by OperationQueue.
  struct Queued {
    bool touched = false, busy = false;
    Nanos timer = kNever;
  } queued;

  // The operation has streams: makes their receivers.
  void start_streams(const ReceiverParams& params);

  // Readable data of the block of stream `s`: kept copy, input, or output.
  ConstBytes source(uint32_t stream) const;
  std::byte* destination(uint32_t stream) const { return post.outputs[stream].data(); }
  bool data_held() const { return !finished; }
  // Bytes of our own block that can be read: all of them, unless it is staged (device memory).
  uint64_t readable() const;
  // The final bytes of the output of `stream` have grown from `before` to `after`.
  void raise_completed(uint32_t stream, uint64_t before, uint64_t after) const;
};

}  // namespace mcast
