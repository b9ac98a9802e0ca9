// Exchanges of a world: the length and the contents of each block. All blocks of one rank lie one
// after the other in one allocation, ordered by the peer's rank.
// Threads: pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/region.h"
#include "sim/network/content.h"
#include "wire/descriptor.h"

namespace mcast::sim {

struct ExchangeShape {
  wire::Kind kind = wire::Kind::kAllToAll;
  uint32_t ranks = 0;
  uint64_t bytes = 0;   // length of a block, or the longest one's
  uint64_t splits = 0;  // all_to_all: seed of the lengths of its blocks; 0: all have `bytes`
  Member root = 0;      // of the other exchanges

  // Length of the block that `from` has for `to` (which may be the same rank); 0: empty, or no
  // block.
  uint64_t length(uint32_t from, uint32_t to) const;
  // Total bytes that go from one rank to another.
  uint64_t crossing() const;
};

// The blocks that a rank has for others (kOut), or receives from others (kIn).
enum class Side : uint8_t { kOut, kIn };

// Allocates memory for them, and lists each block; outgoing blocks are filled.
std::shared_ptr<Pages> exchange_pages(const ExchangeShape& shape, uint64_t op, uint32_t self,
                                      Side side);
std::vector<Slice> exchange_blocks(const ExchangeShape& shape, uint32_t self, Side side,
                                   const std::shared_ptr<Pages>& pages);
// Returns "", or which byte received by `self` is wrong.
std::string wrong_blocks(const ExchangeShape& shape, uint64_t op, uint32_t self,
                         const Pages& pages);

}  // namespace mcast::sim
