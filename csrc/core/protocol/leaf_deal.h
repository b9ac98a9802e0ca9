// In a tree of stations: assigns a rack's contributions to a segment that a station at the top
// folds to one of the rack's own stations, its leaves. Leaves get shares by capacity at every
// prefix of a shard, give or take a few segments. All ranks and stations compute the same
// assignment from the same facts. Pure.
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

  // Without leaves: there is no tree.
  LeafDeal() = default;
  // `racks`: leaves by rack, in the order of the set. `tag`: the group's.
  LeafDeal(uint64_t tag, const std::vector<std::vector<Leaf>>& racks);

  // Returns true if some rack has leaves.
  bool any() const { return any_; }
  // Returns true if the station is a leaf.
  bool has(uint16_t station) const;
  // The leaf's station; kNone: the rack's contributions go to the top.
  uint16_t leaf(uint32_t rack, Member owner, uint32_t segment) const;

 private:
  struct Share {
    uint16_t station;
    uint64_t end;  // of its part of [0, 2^32), which begins at the previous leaf's end
  };
  uint64_t tag_ = 0;
  bool any_ = false;
  std::vector<std::vector<Share>> racks_;
};

}  // namespace mcast
