// Divides a limit between sources so that none can take all of it. A source may have as much as is
// left for the others ("dynamic thresholds": Choudhury and Hahne, IEEE/ACM Transactions on
// Networking 6, 1998): one alone gets half of the limit, two get a third each, and some is always
// left for a source that comes later.
#pragma once

#include <cstdint>
#include <map>

namespace mcast {

// Not thread-safe. `Who` identifies users: an address, a user of the host.
template <typename Who>
class SourceShares {
 public:
  explicit SourceShares(uint64_t most) : most_(most) {}

  // Returns true if the source now has `amount` more.
  bool take(const Who& source, uint64_t amount) {
    const uint64_t left = most_ - used_;
    const auto it = used_by_.find(source);
    const uint64_t has = it == used_by_.end() ? 0 : it->second;
    if (amount > left || has + amount > left - amount) return false;
    if (amount == 0) return true;
    used_by_[source] = has + amount;
    used_ += amount;
    return true;
  }
  void give(const Who& source, uint64_t amount) {
    if (amount == 0) return;
    const auto it = used_by_.find(source);
    it->second -= amount;
    used_ -= amount;
    if (it->second == 0) used_by_.erase(it);
  }
  uint64_t used() const { return used_; }
  uint64_t used_by(const Who& source) const {
    const auto it = used_by_.find(source);
    return it == used_by_.end() ? 0 : it->second;
  }

 private:
  const uint64_t most_;
  uint64_t used_ = 0;
  std::map<Who, uint64_t> used_by_;
};

}  // namespace mcast
