// MpscQueue: how other threads hand work to a lane. Any thread pushes; one thread, the lane's,
// takes everything at once. A mutex held for one push_back or one swap: posts are rare beside
// datagrams. Order: of one thread as pushed; of several, some interleaving.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

namespace mcast {

template <typename T>
class MpscQueue {
 public:
  // True: the queue was empty, so the consumer may be asleep and needs a wake-up. (Who pushes onto
  // a queue that is not empty can rely on the thread that filled it first.)
  bool push(T item) {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
    return items_.size() == 1;
  }

  // push() that is refused after close(): false, and `item` is untouched. `wake`: as push()'s
  // result.
  bool try_push(T& item, bool& wake) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    items_.push_back(std::move(item));
    wake = items_.size() == 1;
    return true;
  }
  // The last drain: nothing can be pushed by try_push() any more.
  bool close(std::vector<T>& out) {
    out.clear();
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    std::swap(items_, out);
    return !out.empty();
  }

  // Replaces the content of `out` by everything queued; returns whether there was something. The
  // two vectors swap their memory, so a lane that keeps `out` stops allocating. Old items in `out`
  // are destroyed outside the lock.
  bool drain(std::vector<T>& out) {
    out.clear();
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(items_, out);
    return !out.empty();
  }

 private:
  std::mutex mutex_;
  std::vector<T> items_;
  bool closed_ = false;
};

}  // namespace mcast
