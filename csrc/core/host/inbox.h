// What other threads leave for whoever drives a lane: posts, failures, closings.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "collective/messages.h"
#include "collective/operation.h"

namespace mcast {

// put() and knock(): any thread. take(): whoever drives the lane.
class LaneInbox {
 public:
  // A request to leave the group (HostLane::close).
  struct Closing {
    Nanos deadline;
    bool force;
    std::function<void(const Status&)> done;
  };
  struct Mail {
    std::vector<Post> posts;
    std::vector<MessagePost> messages;
    std::vector<std::pair<Status, Member>> failures;
    std::vector<Closing> closings;
  };

  // Keeps the order of its calls.
  void put(Post post);
  void put(MessagePost post);
  void put(const Status& failure, Member culprit);
  void put(Closing closing);
  // As mail that is empty: a driver that has looked already looks again.
  void knock() { mail_.store(true, std::memory_order_seq_cst); }

  bool has_mail() const { return mail_.load(std::memory_order_seq_cst); }
  // Moves what there is to the end of `mail`'s lists. False: there is nothing.
  bool take(Mail& mail);

 private:
  std::mutex mutex_;
  Mail waiting_;
  std::atomic<bool> mail_{false};  // one of these is not empty, or knock()
};

}  // namespace mcast
