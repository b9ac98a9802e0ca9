// MpscQueue: work for a lane from other threads. Any thread pushes; one thread, the lane's, takes
// everything at once. A mutex is held for one push_back or one swap: posts are rare compared with
// datagrams. Order: pushes of one thread keep their order; those of several threads interleave.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

namespace mcast {

template <typename T>
class MpscQueue {
 public:
  // Returns true if the queue was empty, so that the consumer may be asleep and needs a wake-up. (A
  // thread that pushes onto a queue that is not empty can rely on the thread that filled it first.)
  bool push(T item) {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
    return items_.size() == 1;
  }

  // As push(), but refused after close(): then returns false and leaves `item` untouched. `wake`:
  // the result of push().
  bool try_push(T& item, bool& wake) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    items_.push_back(std::move(item));
    wake = items_.size() == 1;
    return true;
  }
  // The last drain: try_push() refuses items from now on.
  bool close(std::vector<T>& out) {
    out.clear();
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    std::swap(items_, out);
    return !out.empty();
  }

  // Replaces the content of `out` by everything queued; returns true if there was any item. The two
  // vectors swap their memory, so a lane that keeps `out` stops allocating. Old items in `out` are
  // destroyed outside the lock.
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
