// A set of chunks, as sorted runs with gaps between them. Pure.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"

namespace mcast {

class ChunkSet {
 public:
  ChunkSet() = default;
  // The runs may be in any order and overlap; empty ones are ignored.
  explicit ChunkSet(std::span<const ChunkRange> runs) { add(runs); }
  explicit ChunkSet(ChunkRange run) { add({&run, 1}); }

  void add(std::span<const ChunkRange> runs);
  void add(const ChunkSet& other) { add(other.runs_); }
  // Removes the part of the set in `range`, and returns it.
  ChunkSet take(ChunkRange range);
  // Removes and returns the first run, or its first `most` chunks. The set must not be empty.
  ChunkRange pop(Chunk most);
  void clear() { runs_.clear(); }

  ChunkSet without(const ChunkSet& other) const;
  ChunkSet common(const ChunkSet& other) const;

  bool empty() const { return runs_.empty(); }
  // Ascending, disjoint, not adjacent.
  const std::vector<ChunkRange>& runs() const { return runs_; }
  auto begin() const { return runs_.begin(); }
  auto end() const { return runs_.end(); }
  bool operator==(const ChunkSet& other) const { return runs_ == other.runs_; }

 private:
  std::vector<ChunkRange> runs_;
};

}  // namespace mcast
