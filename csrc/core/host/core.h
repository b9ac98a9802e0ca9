// HostCore: the operations of one lane of a group whose ranks share a kernel, as a state machine
// over a ControlBlock. Operations are cut into rounds (plan.h); in each round every rank publishes
// a slot and takes what it needs of the others' (algorithms/). It sees no clock, thread or process:
// those are behind HostPort, and the driver's (lane.h).
//
// Threads: one at a time (the caller's lock); peers change the control block meanwhile. Results are
// queued: `done` runs in deliver() only, which the driver calls after its turn, and may do anything
// but use this object. `on_completed` runs inside progress().
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/trace.h"
#include "host/algorithms/algorithms.h"
#include "host/messages.h"
#include "host/needs.h"

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
  // A send or a receive, on lane kMessageLane. Likewise.
  void post_message(MessagePost post);

  // Does what can be done. `large`: also what takes longer than a hand-over to another thread,
  // for some time or until an operation ends. True: there may be more that could be done at once.
  bool progress(bool large);

  // Runs the callbacks of operations that have ended since the last time.
  void deliver();

  // Tells the peers what this rank waits for. False: it is there already, call progress() again.
  bool arm(HostWaiter waiter);
  void disarm();

  // Nothing is in flight here.
  bool idle() const { return ops_.empty() && (!messages_ || messages_->idle()); }
  // Members that the oldest operation waits for, or a message.
  std::vector<Member> awaited() const;
  // Fails the group if a limit has passed or somebody left without calling what we wait for.
  // `unresponsive` are members that do not answer.
  void check(const std::vector<Member>& unresponsive);

  // Fails everything here and on all ranks. The first reason of all ranks wins.
  void fail(const Status& why, Member culprit);
  const Status& failure() const { return failure_; }
  // Operations and messages that are not over here.
  size_t in_flight() const;
  // Whether this rank may leave now: nothing is in flight here. Where that has been waited for long
  // enough (`late`), or is not to be (`force`), what is in flight fails, here and on all ranks, and
  // `outcome` says so, unless it is an error already. Not yet true: ask again later.
  bool may_leave(bool force, bool late, Status& outcome);
  // Says that this rank posts nothing more.
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

  // core_failure.cpp: what ends them otherwise
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
  // What has ended, and what is being delivered: they change places, so that neither needs new
  // memory for every operation.
  std::vector<std::pair<std::function<void(const Status&)>, Status>> ended_, delivering_;
  uint64_t published_ = 0;                  // rounds: those of the next operation follow
  size_t publishing_ = 0;                   // index of the operation to publish from
  size_t consuming_ = 0;                    // of the one to consume
  Nanos claim_seen_ = kNever;               // since when a failure is being written
  std::unique_ptr<HostMessages> messages_;  // of kMessageLane; else null
};

}  // namespace mcast
