// A window has 16 blocks at most (station_lookahead()), so a block is looked for one after the
// other: 16 keys are four cache lines.
#include "aggregation/fold/block_table.h"

#include <algorithm>
#include <cassert>

namespace mcast::aggregation {

BlockTable::BlockTable(uint32_t most, uint32_t contributors)
    : words_((contributors + 63) / 64), records_(most) {
  if (contributors <= BlockRecord::kNearBits) return;
  far_.resize(size_t{words_} * records_.size());
  for (size_t i = 0; i < records_.size(); i++) records_[i].far = far_.data() + i * words_;
}

BlockRecord* BlockTable::find(const BlockKey& key) {
  for (BlockRecord& r : records_) {
    if (r.used && r.key == key) return &r;
  }
  return nullptr;
}

BlockRecord* BlockTable::insert(const BlockKey& key, Nanos now) {
  assert(find(key) == nullptr);
  if (size_ == capacity()) return nullptr;
  BlockRecord& r = *std::find_if(records_.begin(), records_.end(),
                                 [](const BlockRecord& record) { return !record.used; });
  uint64_t* const far = r.far;
  r = BlockRecord();
  r.far = far;
  r.key = key;
  r.used = true;
  r.touched = now;
  std::fill_n(words(r), words_, 0);
  size_++;
  return &r;
}

void BlockTable::erase(BlockRecord& record) {
  record.used = false;
  size_--;
}

bool BlockTable::add(BlockRecord& record, uint32_t contributor, Nanos now) {
  uint64_t& word = words(record)[contributor / 64];
  const uint64_t bit = uint64_t{1} << contributor % 64;
  if ((word & bit) != 0) return false;
  word |= bit;
  record.contributors++;
  record.touched = now;
  return true;
}

bool BlockTable::has(const BlockRecord& record, uint32_t contributor) const {
  return (bits(record)[contributor / 64] >> contributor % 64 & 1u) != 0;
}

std::span<const uint64_t> BlockTable::bits(const BlockRecord& record) const {
  return {record.far != nullptr ? record.far : record.near, words_};
}

}  // namespace mcast::aggregation
