// Exchanges of a world: how long each block is, and what is in it. One rank's blocks lie one behind
// the other in one memory, by rank of the other side.
// Threads: pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/region.h"
#include "simulation/content.h"
#include "wire/descriptor.h"

namespace mcast::sim {

struct ExchangeShape {
  wire::Kind kind = wire::Kind::kAllToAll;
  uint32_t ranks = 0;
  uint64_t bytes = 0;   // of a block, the most of one
  uint64_t splits = 0;  // of an all_to_all: seed of the lengths of its blocks; 0: all have `bytes`
  Member root = 0;      // of the others

  // Of the block that one rank has for another, or for itself; 0: empty, or there is none.
  uint64_t length(uint32_t from, uint32_t to) const;
  // Bytes that go from one rank to another, in all.
  uint64_t crossing() const;
};

// The side of a rank's blocks: that it has for others, that come from others.
enum class Side : uint8_t { kOut, kIn };

// Memory for them, and each of them; blocks that go out are filled.
std::shared_ptr<Pages> exchange_pages(const ExchangeShape& shape, uint64_t op, uint32_t self,
                                      Side side);
std::vector<Slice> exchange_blocks(const ExchangeShape& shape, uint32_t self, Side side,
                                   const std::shared_ptr<Pages>& pages);
// "", or which byte of what has come to `self` is wrong.
std::string wrong_blocks(const ExchangeShape& shape, uint64_t op, uint32_t self,
                         const Pages& pages);

}  // namespace mcast::sim
