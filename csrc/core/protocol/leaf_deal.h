// In a tree of stations: which of a rack's own stations, its leaves, takes the rack's contributions
// to a segment that a station at the top folds. By capacity at every prefix of a shard, give or
// take a few segments. All ranks and stations make the same deal of the same facts. Pure.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class LeafDeal {
 public:
  struct Leaf {
    uint16_t station = 0;   // number in the set
    uint32_t capacity = 0;  // of its link
  };
  static constexpr uint16_t kNone = 0xffff;

  // No rack has leaves: there is no tree.
  LeafDeal() = default;
  // `racks`: by rack, in the order of the set. `tag`: of the group.
  LeafDeal(uint64_t tag, const std::vector<std::vector<Leaf>>& racks);

  // Whether some rack has leaves.
  bool any() const { return any_; }
  // Whether a station is one.
  bool has(uint16_t station) const;
  // The leaf's station; kNone: the rack's contributions go to the top.
  uint16_t leaf(uint32_t rack, Member owner, uint32_t segment) const;

 private:
  struct Share {
    uint16_t station;
    uint64_t end;  // of its part of [0, 2^32), which begins where the one before ends
  };
  uint64_t tag_ = 0;
  bool any_ = false;
  std::vector<std::vector<Share>> racks_;
};

}  // namespace mcast
