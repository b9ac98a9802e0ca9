// HostCore: the operations of one lane of a group whose ranks share a kernel, as a state machine
// over a ControlBlock. Operations are divided into rounds (plan.h); in each round every rank
// publishes a slot and takes the data that it needs from the others' (algorithms/). It uses no
// clock, thread or process directly: HostPort and the driver (lane.h) do.
//
// Threads: one at a time (the caller's lock); peers change the control block meanwhile. Results are
// queued: `done` runs only in deliver(), which the driver calls after its turn, and may do anything
// but use this object. `on_completed` runs inside progress().
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/trace.h"
#include "shm/algorithms/algorithms.h"
#include "shm/messages.h"
#include "shm/needs.h"

namespace mcast {

struct HostParams {
  std::string name;
  Member self = 0;
  uint32_t size = 1;
  uint8_t lane = 0;
  PeerMemory memory = PeerMemory::kRead;  // agreed by all ranks
  FoldOrder fold = FoldOrder::kRank;
  std::shared_ptr<Trace> trace;
};

class HostCore {
 public:
  // `block`, of params.size members, `port` and `counters` outlive this.
  HostCore(HostParams params, ControlBlock block, HostPort& port, Counters& counters);

  // Posts op `post.sequence` (consecutive from 0). Always ends in exactly one call of post.done.
  void post(Post post);
  // Posts a send or a receive, on lane kMessageLane. The same rule applies to its `done`.
  void post_message(MessagePost post);

  // Does all work that is possible now. `large`: also work that takes longer than a hand-over to
  // another thread, for some time or until an operation ends. Returns true if more could be done at
  // once.
  bool progress(bool large);
  // Changes when progress() has moved anything.
  uint64_t moves() const { return moves_; }

  // Runs the callbacks of operations that have ended since the last time.
  void deliver();

  // Publishes what this rank waits for, so that peers wake it. Returns false if it is available
  // already; call progress() again then.
  bool arm(HostWaiter waiter);
  void disarm();

  // Returns true if no operation or message is in flight here.
  bool idle() const { return ops_.empty() && (!messages_ || messages_->idle()); }
  // The last operation that was posted, if it is in flight.
  std::optional<Sequence> newest() const {
    return ops_.empty() ? std::nullopt : std::optional(ops_.back()->post.sequence);
  }
  // Members that the oldest operation waits for, or a message.
  std::vector<Member> awaited() const;
  // Fails the group if a limit has passed or a rank left without calling an awaited operation.
  // `unresponsive`: members that do not reply.
  void check(const std::vector<Member>& unresponsive);

  // Fails everything here and on all ranks. All ranks report the first reason of any rank.
  void fail(const Status& why, Member culprit);
  const Status& failure() const { return failure_; }
  // Operations and messages that are not over here.
  size_t in_flight() const;
  // Returns true if this rank may leave now: nothing is in flight here. If the wait has been long
  // enough (`late`), or is not allowed (`force`), operations in flight fail, here and on all ranks,
  // and `outcome` reports it, unless it is an error already. If it returns false, ask again later.
  bool may_leave(bool force, bool late, Status& outcome);
  // Announces that this rank posts no more operations.
  void leave();

 private:
  // core.cpp: operations from post to end
  bool move_messages(int pass, bool large, bool& left_over);
  bool arm_operations(HostWaiter waiter);
  bool can_publish(uint64_t least_consumed) const;
  bool can_complete(uint64_t least_consumed) const;
  bool publish_next(bool large, bool& left_over);
  bool consume_next(bool large, bool& left_over);
  bool complete_next();
  void begin_round(HostOperation& op) const;
  bool compare(HostOperation& op, uint32_t index);
  void finish_oldest(const Status& status);
  const HostOperation* consuming() const;

  // core_failure.cpp: other ends of operations
  void obey_failure();
  void heed_messages();
  void limit_operations(const std::vector<Member>& unresponsive);
  void fail_unreadable();
  void fail_local(const Status& why);
  bool fail_for_leavers();
  std::string timeout_text(const HostOperation& op, const std::vector<Member>& unresponsive,
                           Member& culprit) const;
  std::string op_text(const Post& post) const;
  std::string oldest_text() const;
  std::vector<Member> awaited_by_operations() const;

  const HostParams params_;
  HostPort& port_;
  Counters& counters_;
  const LaneView lane_;
  HostTools tools_;
  Needs needs_;
  Status failure_;

  std::deque<std::unique_ptr<HostOperation>> ops_;  // in flight, oldest first
  // Results that have ended, and results being delivered: the two swap, so that operations need no
  // new memory.
  std::vector<std::pair<std::function<void(const Status&)>, Status>> ended_, delivering_;
  uint64_t moves_ = 0;
  uint64_t published_ = 0;                  // rounds: those of the next operation follow
  size_t publishing_ = 0;                   // index of the operation to publish from
  size_t consuming_ = 0;                    // index of the operation to consume
  Nanos claim_seen_ = kNever;               // time since which a failure is being written
  std::unique_ptr<HostMessages> messages_;  // of kMessageLane; else null
};

}  // namespace mcast
