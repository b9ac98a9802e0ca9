// One operation in flight at one member: its plan, its memory, its protocol machines, its state.
#pragma once

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
#include "collective/exchange_run.h"
#include "collective/plan.h"
#include "collective/reduce_run.h"
#include "protocol/active_streams.h"
#include "protocol/block_receiver.h"
#include "protocol/block_sender.h"
#include "protocol/chain.h"
#include "protocol/credit_tree.h"
#include "protocol/fetch_client.h"
#include "protocol/repair_server.h"
#include "protocol/skew_limiter.h"

namespace mcast {

// What a post hands to the group. Slices are empty where they do not apply.
struct Post {
  Sequence sequence = 0;
  wire::Descriptor descriptor;
  Slice input;                 // the own block (root of a broadcast; allgather)
  std::vector<Slice> outputs;  // stream -> destination; the own stream may be the input itself
  Nanos posted = 0;            // when
  Nanos timeout = kNever;      // from then
  std::function<void(const Status&)> done;
  std::optional<ReduceArgs> reduce;      // reductions; input and outputs are then empty
  std::optional<ExchangeArgs> exchange;  // exchanges, likewise
  // Completed ends of the outputs, if asked for: (stream, bytes final from its start).
  std::function<void(uint32_t, uint64_t)> on_completed;
  size_t completed_step = 1;
  // If there is one, bytes of outputs that come over the network go there and not to the outputs,
  // where they can be read nevertheless.
  std::shared_ptr<Landing> landing;
  // Calls on_completed, which must be there, if what is final of an output of `end` bytes has
  // passed a multiple of completed_step on its way from `before` to `after`, or is all of it.
  void raise_completed(uint32_t stream, uint64_t before, uint64_t after, uint64_t end) const;
  // The data travels by other groups: this one only makes sure that all ranks call the same and
  // ends it for all. Complete here when true; then call GroupCore::arrived().
  std::shared_ptr<const std::atomic<bool>> delegated;
  // How many ranks' inputs are in the result: lowered where it ends without some. May be null.
  std::shared_ptr<std::atomic<uint32_t>> contributors;
  std::shared_ptr<Moments> moments;  // may be null
  // When its time limit passes; it counts from the post, also while the operation waits to start.
  Nanos deadline() const { return later(posted, timeout); }
  void note_contributors(uint32_t count) const {
    if (contributors && count < contributors->load()) contributors->store(count);
  }
};

// Which operation, of which group, on which rank, how long it took and how long it might: the start
// of its errors.
std::string describe_failed(const Post& post, const std::string& group, Member self, Nanos now);

// How far a block has come on the ring path.
struct RingBlock {
  uint64_t available = 0;  // bytes here, in order
  uint64_t forwarded = 0;  // bytes handed to the successor
  bool listed = false;     // in Ring::turns
};

struct Operation {
  Post post;
  Plan plan;
  Nanos deadline = kNever;

  // The number of a member's stream and back: broadcast has one stream, its root's.
  std::optional<uint32_t> stream_of(Member m) const {
    const bool one = plan.one_root();
    if (one ? m != plan.descriptor.root : m >= plan.roots) return std::nullopt;
    return one ? 0 : m;
  }
  Member member_of(uint32_t stream) const;
  Member self = 0;

  // The own block, at a root.
  struct Own {
    std::optional<uint32_t> stream;  // set at roots
    std::optional<BlockSender> sender;
    std::optional<RepairServer> repairs;
    std::vector<std::byte> kept;     // small: a copy of the block, until released
    bool started = false;            // small: the block is in `kept`; large: its turn has come
    bool held_back = false;          // small: not sent yet, since late ranks could not keep it
    Nanos turn_idle_since = kNever;  // since when nobody in the own chain sends, or begins to
    uint32_t silent_before = 0;      // roots before this one that were not heard then
    Nanos turn_retry = kNever;       // when to look again whether a late root is not waited for
    uint64_t stalls_counted = 0, cuts_counted = 0;
  } own;

  std::vector<BlockReceiver> receivers;  // by stream; the own one is all set
  uint32_t receiving = 0;                // blocks not complete
  std::vector<Chunk> final_to;  // by stream: no hole below; only if completed ends are asked for
  std::optional<FetchClient> fetch;

  // What is on its way, and what paces large blocks.
  struct Flow {
    ActiveStreams active;  // that were heard, and are not complete or not reported to be
    std::optional<CreditTree> credit;
    std::vector<Chunk> reported;  // by stream: high-water mark at the last own credit report
    std::vector<Chunk> told;      // by stream: the limit there
    uint32_t groups = 0;          // that shared the receive budget then; 0: none was made
    std::optional<Chains> chains;
    std::optional<SkewLimiter> skew;  // roots that all send at once
    // Some of it was sent before this rank posted: what did not arrive says nothing about the path.
    bool late = false;
  } flow;

  // The ring path only.
  struct Ring {
    std::vector<RingBlock> blocks;  // by stream
    bool open = false;              // the successor has posted the operation
    std::deque<uint32_t> turns;     // streams of which there may be something to pass on
  } ring;

  std::unique_ptr<ReduceRun> reduce;          // reductions
  std::unique_ptr<ExchangeRun> exchange;      // exchanges
  std::vector<std::shared_ptr<void>> grants;  // parts of its memory that others may be reading

  bool needs_release = false;  // finished when complete everywhere
  bool local_complete = false;
  Nanos first_byte = kNever, last_byte = kNever;  // of data, in or out
  bool finished = false;                          // result delivered, regions dropped

  // OperationQueue's.
  struct Queued {
    bool touched = false, busy = false;
    Nanos timer = kNever;
  } queued;

  // The block of stream `s` as it can be read: kept copy, input, or output.
  ConstBytes source(uint32_t stream) const;
  std::byte* destination(uint32_t stream) const { return post.outputs[stream].data(); }
  bool data_held() const { return !finished; }
  // Bytes of the own block that may be read: all, unless it is staged (device memory).
  uint64_t readable() const;
  // The output of `stream` has become final from `before` to `after` bytes.
  void raise_completed(uint32_t stream, uint64_t before, uint64_t after) const;
};

}  // namespace mcast
