// Multiples of the golden ratio, modulo 1, fill the unit interval evenly at every prefix, and
// without a period that the assignment at the top could share. Each shard starts at another offset.
#include "protocol/leaf_deal.h"

#include <algorithm>

#include "base/rng.h"

namespace mcast {
namespace {

constexpr uint32_t kGolden = 2654435769u;  // times 2^32

}  // namespace

LeafDeal::LeafDeal(uint64_t tag, const std::vector<std::vector<Leaf>>& racks) : tag_(tag) {
  for (const std::vector<Leaf>& leaves : racks) {
    std::vector<Share>& shares = racks_.emplace_back();
    uint64_t all = 0, upto = 0;
    for (const Leaf& leaf : leaves) all += leaf.capacity;
    for (const Leaf& leaf : leaves) {
      if (leaf.capacity == 0) continue;
      upto += leaf.capacity;
      const auto end = static_cast<uint64_t>((static_cast<unsigned __int128>(upto) << 32) / all);
      shares.push_back({leaf.station, end});
    }
    any_ = any_ || !shares.empty();
  }
}

bool LeafDeal::has(uint16_t station) const {
  return std::any_of(racks_.begin(), racks_.end(), [station](const std::vector<Share>& rack) {
    return std::any_of(rack.begin(), rack.end(),
                       [station](const Share& s) { return s.station == station; });
  });
}

uint16_t LeafDeal::leaf(uint32_t rack, Member owner, uint32_t segment) const {
  if (!any_ || racks_[rack].empty()) return kNone;
  const std::vector<Share>& shares = racks_[rack];
  if (shares.size() == 1) return shares[0].station;
  const auto begin = static_cast<uint32_t>(mix64(tag_ ^ mix64(uint64_t{rack} << 16 ^ owner)));
  const uint32_t at = begin + segment * kGolden;
  const auto it = std::find_if(shares.begin(), shares.end(),
                               [at](const Share& share) { return at < share.end; });
  return it->station;
}

}  // namespace mcast
