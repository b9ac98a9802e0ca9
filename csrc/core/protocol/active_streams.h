// The active streams of an operation: those with an event so far that may still need work, so that
// a loop over them need not visit all of a thousand streams. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mcast {

class ActiveStreams {
 public:
  ActiveStreams() = default;
  explicit ActiveStreams(uint32_t streams) : listed_(streams) {}

  void add(uint32_t stream) {
    if (listed_[stream]) return;
    listed_[stream] = true;
    list_.push_back(stream);
  }
  // In the order in which they were added.
  const std::vector<uint32_t>& list() const { return list_; }
  // Calls `keep` for each in this order; those for which it returns false are no longer listed. It
  // must not add any.
  template <typename Keep>
  void visit(Keep keep) {
    size_t kept = 0;
    for (const uint32_t stream : list_) {
      if (keep(stream)) {
        list_[kept++] = stream;
      } else {
        listed_[stream] = false;
      }
    }
    list_.resize(kept);
  }

 private:
  std::vector<uint32_t> list_;
  std::vector<bool> listed_;
};

}  // namespace mcast
