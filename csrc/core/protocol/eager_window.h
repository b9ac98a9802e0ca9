// Limits the data under way to ranks that have not posted its operations yet.
#pragma once

#include <cstddef>
#include <deque>

#include "base/types.h"

namespace mcast {

// Every rank charges each operation that it posts with the memory that a late receiver would need
// for it, from any sender, and refunds the charge when the operation has been released. A root
// sends data of an operation unasked only while the charges up to that operation fit the limit. No
// receiver can then be sent more than the limit ahead of its own calls: the root that is furthest
// ahead has charged everything that the receiver lacks, since none of that has been released. Pure.
class EagerWindow {
 public:
  // `first`: the sequence of the first operation.
  explicit EagerWindow(size_t limit, Sequence first = 0) : limit_(limit), base_(first) {}

  // Cost of one chunk for a receiver that keeps it, beyond its payload: bookkeeping, and the buffer
  // in which a socket holds it.
  static constexpr size_t kChunkOverhead = 96;
  static constexpr uint64_t cost(uint64_t chunks, uint64_t bytes) {
    return bytes + chunks * kChunkOverhead;
  }

  // Charges the next operation, in the order of the calls; 0 if none of it is sent unasked.
  void on_post(uint64_t cost) { ends_.push_back(total_ += cost); }
  // Operations below `end` are complete everywhere.
  void on_released(Sequence end) {
    for (; base_ < end && !ends_.empty(); base_++) {
      released_ = ends_.front();
      ends_.pop_front();
    }
  }
  // Returns true if data of the posted operation may be sent unasked. The oldest always may: one
  // operation fits, however small the limit is.
  bool open(Sequence sequence) const {
    if (sequence <= base_) return true;
    return ends_[sequence - base_] - released_ <= limit_;
  }
  // Returns true if ranks should report finished operations at once.
  bool filling() const { return total_ - released_ > limit_ / 2; }

 private:
  const uint64_t limit_;
  uint64_t total_ = 0, released_ = 0;  // charges of all posted, of all released operations
  Sequence base_;                      // released below
  std::deque<uint64_t> ends_;          // by sequence from base_: sum of charges including it
};

}  // namespace mcast
