// A queue in one piece of memory: an empty one costs a vector's header. An empty std::deque costs
// half a kilobyte, too much for a million streams. Threads: one.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace mcast::sim {

template <typename T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  size_t size() const { return items_.size() - head_; }
  T& front() { return items_[head_]; }
  const T& front() const { return items_[head_]; }
  T& back() { return items_.back(); }
  T& operator[](size_t i) { return items_[head_ + i]; }
  const T& operator[](size_t i) const { return items_[head_ + i]; }

  void push(T item) { items_.push_back(std::move(item)); }
  void pop() {
    items_[head_++] = T();
    if (head_ == items_.size()) {
      items_.clear();
      head_ = 0;
    } else if (head_ >= 64 && head_ * 2 >= items_.size()) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
  }
  void clear() {
    items_.clear();
    head_ = 0;
  }
  // Empties it and releases its memory.
  void release() {
    std::vector<T>().swap(items_);
    head_ = 0;
  }

 private:
  std::vector<T> items_;
  size_t head_ = 0;
};

}  // namespace mcast::sim
