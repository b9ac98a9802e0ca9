// The order in which the contributions to a block of a reduction are folded (setting "fold"). The
// last bits of floating-point results depend on it, so all ranks use the same order, whoever folds
// the block and by whatever path its contributions arrive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mcast {

enum class FoldOrder : uint8_t {
  kRank,  // 0, 1, ... K - 1
  kTurn,  // from the one after the owner around to the owner, which is last
};

// `setting`: a valid value of the setting.
constexpr FoldOrder fold_order(std::string_view setting) noexcept {
  return setting == "turn" ? FoldOrder::kTurn : FoldOrder::kRank;
}

// The first contributor in the fold of `owner`'s block; the others follow in ascending order,
// modulo `contributors`. Requires owner < contributors.
constexpr uint32_t first_folded(FoldOrder order, uint32_t owner, uint32_t contributors) noexcept {
  return order == FoldOrder::kTurn ? (owner + 1) % contributors : 0;
}

// Bytes of a member's block of an all_reduce or a reduce; the last blocks may be shorter, or empty.
constexpr size_t block_share(size_t bytes, size_t element, size_t members) noexcept {
  return (bytes / element + members - 1) / members * element;
}

// Layout of blocks in the memory of a rank that also folds blocks of other owners: each element is
// still folded in the order of its owner.
struct FoldLayout {
  FoldOrder order = FoldOrder::kRank;
  uint32_t contributors = 1;
  uint32_t owner = 0;  // of the first block
  size_t share = 1;    // bytes of a block

  // Calls fn(at, bytes, first) for each part of [at, at + bytes) that has one order; `first` is its
  // first contributor.
  template <typename Fn>
  void for_each_part(size_t at, size_t bytes, Fn&& fn) const {
    if (order == FoldOrder::kRank) return fn(at, bytes, 0u);
    for (const size_t end = at + bytes; at < end;) {
      const auto block = static_cast<uint32_t>(at / share);
      const size_t part = std::min(end - at, share - at % share);
      fn(at, part, first_folded(order, owner + block, contributors));
      at += part;
    }
  }
};

}  // namespace mcast
