// Objects that events refer to by index: stable addresses, indices reused, memory of a freed object
// (its vectors' capacity) kept for the next one. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace mcast::sim {

template <typename T>
class Numbered {
 public:
  // The object is as its last user left it; the caller sets all fields that it reads.
  uint32_t take() {
    if (free_.empty()) {
      all_.emplace_back();
      return static_cast<uint32_t>(all_.size() - 1);
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give(uint32_t index) { free_.push_back(index); }

  T& operator[](uint32_t index) { return all_[index]; }
  const T& operator[](uint32_t index) const { return all_[index]; }
  size_t used() const { return all_.size() - free_.size(); }

 private:
  std::deque<T> all_;
  std::vector<uint32_t> free_;
};

}  // namespace mcast::sim
