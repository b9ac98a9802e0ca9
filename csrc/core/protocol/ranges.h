// Set operations on sorted disjoint runs of chunks.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

std::vector<ChunkRange> intersect(const std::vector<ChunkRange>& a,
                                  const std::vector<ChunkRange>& b);
std::vector<ChunkRange> subtract(const std::vector<ChunkRange>& a,
                                 const std::vector<ChunkRange>& b);
// Adds `b`, whose runs may be in any order and overlap, to `a`.
void unite(std::vector<ChunkRange>& a, const std::vector<ChunkRange>& b);

}  // namespace mcast
