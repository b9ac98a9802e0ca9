// Open addressing with linear probing. At most a quarter of the places is used, so a probe ends
// after one or two. A record that goes leaves no mark: those behind it that may are moved forward
// into the gap (Knuth, 6.4, algorithm R), so lookups stay as short however long a station lives.
#include "aggregation/block_table.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "base/rng.h"

namespace mcast::aggregation {

BlockTable::BlockTable(uint32_t most, uint32_t contributors)
    : most_(most), words_((contributors + 63) / 64), records_(std::bit_ceil(most * 4)) {
  if (contributors <= BlockRecord::kNearBits) return;
  far_.resize(size_t{words_} * records_.size());
  for (size_t i = 0; i < records_.size(); i++) records_[i].far = far_.data() + i * words_;
}

uint32_t BlockTable::home(const BlockKey& key) const {
  const uint64_t h = mix64(mix64(uint64_t{key.job} << 32 | key.operation) + key.number);
  return static_cast<uint32_t>(h) & (capacity() - 1);
}

BlockRecord* BlockTable::find(const BlockKey& key) {
  for (uint32_t i = home(key);; i = (i + 1) & (capacity() - 1)) {
    if (!records_[i].used) return nullptr;
    if (records_[i].key == key) return &records_[i];
  }
}

BlockRecord* BlockTable::insert(const BlockKey& key, Nanos now) {
  assert(find(key) == nullptr);
  if (size_ == most_) return nullptr;
  uint32_t i = home(key);
  while (records_[i].used) i = (i + 1) & (capacity() - 1);
  BlockRecord& r = records_[i];
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
  const uint32_t mask = capacity() - 1;
  auto gap = static_cast<uint32_t>(&record - records_.data());
  records_[gap].used = false;
  size_--;
  for (uint32_t i = (gap + 1) & mask; records_[i].used; i = (i + 1) & mask) {
    // It may move to the gap unless its home lies behind the gap, up to where it is.
    if (((i - home(records_[i].key)) & mask) < ((i - gap) & mask)) continue;
    std::swap(records_[gap], records_[i]);  // each keeps far bits of its own
    gap = i;
  }
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
