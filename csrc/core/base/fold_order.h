// The order in which the contributions to a block of a reduction are folded (setting "fold"). A
// fold in floating point depends on it in its last bits, so it is one for all ranks, whoever folds
// the block and by whatever path its contributions come.
#pragma once

#include <cstdint>
#include <string_view>

namespace mcast {

enum class FoldOrder : uint8_t {
  kRank,  // 0, 1, ... K - 1
  kTurn,  // from the one after the owner around to the owner, which is last
};

// Who is first in the fold of `owner`'s block; the others follow in ascending order, modulo
// `contributors`. owner < contributors.
constexpr uint32_t first_folded(FoldOrder order, uint32_t owner, uint32_t contributors) noexcept {
  return order == FoldOrder::kTurn ? (owner + 1) % contributors : 0;
}

// Of a valid value of the setting.
constexpr FoldOrder fold_order(std::string_view setting) noexcept {
  return setting == "turn" ? FoldOrder::kTurn : FoldOrder::kRank;
}

}  // namespace mcast
