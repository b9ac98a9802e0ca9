// SmallOperations: the own small operations from the post until they are sent, and what is known of
// how far the other roots have got with theirs.
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

  // An operation is posted: what it sends ahead of credit counts from now on. `ahead`: chunks.
  void on_post(const Operation& op, Chunk ahead);
  // Whether the allowance has room for what operation `sequence` sends ahead; whether it runs low.
  bool open(Sequence sequence) const { return eager_.open(sequence); }
  bool filling() const { return eager_.filling(); }
  // A small one of this root: kept for repair at once, or as soon as there is memory for it.
  void add(Operation& op);
  void keep_waiting();
  // Sends what is kept and not sent yet, in order. True: more can be sent at once.
  bool send(Nanos now);

  // `root` has sent all its small operations below `end`.
  void note_sent(Member root, Sequence end, Nanos now);
  // What the roots had said before the post.
  void learn_sent(Operation& op, Nanos now);
  SentTracker& tracker() { return sent_; }
  const SentTracker& tracker() const { return sent_; }

  // Says how far this root has got once it stops, and passes on what others say.
  void announce(Nanos now);
  void pass_on(const CompletionReports& completion);
  void on_sent_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  Nanos deadline() const { return sent_news_.empty() ? announcer_.deadline() : 0; }

  // The oldest operation has left the queue with `kept` bytes kept for repair; 0: none.
  void give_back(size_t kept) {
    if (kept > 0) kept_bytes_ -= kept + OperationQueue::kSettledCost;
  }
  // Operations below the queue's base are complete everywhere.
  void on_released();

 private:
  bool keep(Operation& op);

  GroupContext& g_;
  SourceAuth& sources_;
  // Own small operations: those that wait for retransmit memory or for their data, and those that
  // are kept and not sent yet; both in order.
  std::deque<Sequence> unkept_, unsent_;
  size_t kept_bytes_ = 0;
  EagerWindow eager_;
  SentAnnouncer announcer_;
  SentTracker sent_;
  struct SentNews {
    wire::SentEntry entry;
    Member from;
  };
  std::vector<SentNews> sent_news_;  // to be passed on with the next turn
};

}  // namespace mcast
