// Requests of other threads to the driver of a lane: posts, failures, closings.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "collective/messages.h"
#include "collective/operation.h"

namespace mcast {

// put() and knock(): any thread. take(): the thread that drives the lane.
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
  // Acts as empty mail: a driver that has looked already looks again.
  void knock() { mail_.store(true, std::memory_order_seq_cst); }

  bool has_mail() const { return mail_.load(std::memory_order_seq_cst); }
  // Appends the mail to `mail`'s lists. Returns false if there is none.
  bool take(Mail& mail);

 private:
  std::mutex mutex_;
  Mail waiting_;
  std::atomic<bool> mail_{false};  // there is mail, or knock() was called
};

}  // namespace mcast
