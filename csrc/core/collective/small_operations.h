// SmallOperations: this root's small operations from their post until they are sent, and the
// positions of the other roots in theirs.
//
// Threads: the lane's.
#pragma once

#include <deque>
#include <vector>

#include "collective/completion_reports.h"
#include "collective/group_context.h"
#include "collective/source_auth.h"
#include "protocol/eager_window.h"
#include "protocol/sent_announcer.h"
#include "protocol/sent_tracker.h"

namespace mcast {

class SmallOperations {
 public:
  SmallOperations(GroupContext& context, SourceAuth& sources);

  // An operation is posted: the chunks it sends ahead of credit count from now on. `ahead`: chunks.
  void on_post(const Operation& op, Chunk ahead);
  // open(): whether the allowance has room for operation `sequence`'s chunks ahead of credit.
  // filling(): whether it is nearly used up.
  bool open(Sequence sequence) const { return eager_.open(sequence); }
  bool filling() const { return eager_.filling(); }
  // Adds a small operation of this root: it is kept for repair now, or once there is memory for it.
  void add(Operation& op);
  void keep_waiting();
  // Sends kept operations that are not sent yet, in order. Returns true if more can be sent at
  // once.
  bool send(Nanos now);

  // `root` has sent all its small operations below `end`.
  void note_sent(Member root, Sequence end, Nanos now);
  // Applies positions that roots had reported before the post.
  void learn_sent(Operation& op, Nanos now);
  SentTracker& tracker() { return sent_; }
  const SentTracker& tracker() const { return sent_; }

  // Reports this root's position once it stops sending, and forwards the reports of others.
  void announce(Nanos now);
  void pass_on(const CompletionReports& completion);
  void on_sent_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  Nanos deadline() const { return sent_news_.empty() ? announcer_.deadline() : 0; }

  // The oldest operation has left the queue with `kept` bytes kept for repair. 0: none.
  void give_back(size_t kept) {
    if (kept > 0) kept_bytes_ -= kept + OperationQueue::kSettledCost;
  }
  // Operations below the queue's base are complete everywhere.
  void on_released();

 private:
  bool keep(Operation& op);

  GroupContext& g_;
  SourceAuth& sources_;
  // Our small operations: those that wait for retransmit memory or for their data, and those that
  // are kept but not sent yet. Both in order.
  std::deque<Sequence> unkept_, unsent_;
  size_t kept_bytes_ = 0;
  EagerWindow eager_;
  SentAnnouncer announcer_;
  SentTracker sent_;
  struct SentNews {
    wire::SentEntry entry;
    Member from;
  };
  std::vector<SentNews> sent_news_;  // to be forwarded by the next progress()
};

}  // namespace mcast
