// Tags of the groups that a lane has removed most recently: frames for them are late, and not early
// frames of a future group. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

namespace mcast {

class RetiredTags {
 public:
  static constexpr size_t kMost = 4096;

  void add(uint64_t tag) {
    if (!tags_.insert(tag).second) return;
    order_.push_back(tag);
    if (order_.size() <= kMost) return;
    tags_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(uint64_t tag) const { return tags_.count(tag) > 0; }

 private:
  std::unordered_set<uint64_t> tags_;
  std::deque<uint64_t> order_;  // oldest first
};

}  // namespace mcast
