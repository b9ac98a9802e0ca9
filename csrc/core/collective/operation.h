// One operation in flight at one member: its plan, its memory, its protocol machines, its state.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/region.h"
#include "base/status.h"
#include "collective/plan.h"
#include "collective/reduce_run.h"
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
  std::vector<Slice> outputs;  // slot -> destination; the own slot may be the input itself
  Nanos posted = 0;            // when
  Nanos timeout = kNever;      // from then
  std::function<void(const Status&)> done;
  std::optional<ReduceArgs> reduce;  // reductions; input and outputs are then empty
  // Completed ends of the outputs, if asked for: (slot, bytes final from its start).
  std::function<void(uint32_t, uint64_t)> on_completed;
  size_t completed_step = 1;
  // Calls on_completed, which must be there, if what is final of an output of `end` bytes has
  // passed a multiple of completed_step on its way from `before` to `after`, or is all of it.
  void raise_completed(uint32_t slot, uint64_t before, uint64_t after, uint64_t end) const;
  // The data travels by other groups: this one only makes sure that all ranks call the same and
  // ends it for all. Complete here when true; then call GroupCore::arrived().
  std::shared_ptr<const std::atomic<bool>> delegated;
};

// Which operation, of which group, on which rank, how long it took and how long it might: the start
// of its errors.
std::string describe_failed(const Post& post, const std::string& group, Member self, Nanos now);

// Order of delivery by stream, for the ring path.
struct RingStream {
  uint64_t available = 0;  // bytes here, in order
  uint64_t forwarded = 0;  // bytes handed to the successor
};

struct Operation {
  Post post;
  Plan plan;
  Nanos deadline = kNever;

  // Slot of a member's stream and back: broadcast has one slot, its root's.
  std::optional<uint32_t> slot_of(Member m) const {
    const bool one = plan.descriptor.kind == wire::Kind::kBroadcast;
    if (one ? m != plan.descriptor.root : m >= plan.roots) return std::nullopt;
    return one ? 0 : m;
  }
  Member member_of(uint32_t slot) const;
  std::optional<uint32_t> own_slot;  // set on roots
  Member self = 0;

  std::vector<BlockReceiver> receivers;  // by slot; the own one is all set
  uint32_t receiving = 0;                // streams not complete
  std::optional<BlockSender> sender;
  std::optional<RepairServer> repairs;
  std::optional<FetchClient> fetch;
  std::optional<CreditTree> credit;
  std::vector<Chunk> reported;  // by slot: mark at the last own credit report
  std::vector<Chunk> final_to;  // by slot: no hole below; only if completed ends are asked for
  std::optional<Chains> chains;
  std::optional<SkewLimiter> skew;    // roots that all send at once
  std::vector<RingStream> ring;       // by slot, ring path only
  bool ring_open = false;             // the successor has posted the op
  uint32_t ring_next = 0;             // slot to serve next, for fairness
  std::unique_ptr<ReduceRun> reduce;  // reductions
  uint64_t completed = 0;             // of the own block of a reduction: completed end
  uint64_t stalls_counted = 0, cuts_counted = 0;

  std::vector<std::shared_ptr<void>> grants;  // parts of its memory that others may be reading

  std::vector<std::byte> kept;   // small root: the block, until released
  bool needs_release = false;    // finished when complete everywhere
  bool sending_started = false;  // small root: the block is in `kept`; large: its turn has come
  bool local_complete = false;
  Nanos first_byte = kNever, last_byte = kNever;  // of data, in or out
  bool finished = false;                          // result delivered, regions dropped
  Nanos turn_idle_since = kNever;                 // since when nobody in the own chain sends
  Nanos turn_retry = kNever;  // when to look again whether a late root is not waited for
  // Some of it was sent before this rank posted: what did not arrive says nothing about the path.
  bool late = false;
  bool held_back = false;  // small root: not sent yet, since late ranks could not keep it

  // OperationQueue's.
  bool touched = false, busy = false;
  Nanos timer = kNever;

  // The block of slot `s` as it can be read: kept copy, input, or output.
  ConstBytes source(uint32_t slot) const;
  std::byte* destination(uint32_t slot) const { return post.outputs[slot].data(); }
  bool data_held() const { return !finished; }
  // Bytes of the own block that may be read: all, unless it is staged (device memory).
  uint64_t readable() const;
  // The output of `slot` has become final from `before` to `after` bytes.
  void raise_completed(uint32_t slot, uint64_t before, uint64_t after) const;
};

}  // namespace mcast
