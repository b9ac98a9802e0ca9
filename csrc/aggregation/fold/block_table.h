// The block records of a station: which segments are being folded, which contributors each has, and
// when the last contribution arrived. An array of fixed size, so no rank can make it grow. Pure.
// Not thread-safe.
//
// Memory: capacity() records of 64 bytes, and for more than 128 contributors as many bits each;
// all of it allocated by the constructor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace mcast::aggregation {

struct BlockKey {
  uint32_t job = 0;  // number of the job in its process
  Sequence operation = 0;
  uint32_t number = 0;  // of the segment in the station's list
  bool operator==(const BlockKey&) const = default;
};

struct alignas(64) BlockRecord {
  static constexpr uint32_t kNearBits = 128;

  BlockKey key;
  uint16_t contributors = 0;  // that have contributed
  bool used = false;
  bool folded = false;      // all have; the result has not left
  uint32_t place = 0;       // the job's: where it is folded
  bool held = false;        // folded, and its result could not leave at once
  Nanos touched = 0;        // when its last contribution came
  uint64_t* far = nullptr;  // more than kNearBits contributors: their bits; the table's memory
  uint64_t near[kNearBits / 64] = {};
};
static_assert(sizeof(BlockRecord) == 64, "one cache line");

class BlockTable {
 public:
  // Room for `most` blocks (1 at least) of `contributors` each.
  BlockTable(uint32_t most, uint32_t contributors);

  // Returns null if there is no such block. A record stays where it is until it is erased.
  BlockRecord* find(const BlockKey& key);
  // A block that is not there yet, without contributors. None: `most` are there.
  BlockRecord* insert(const BlockKey& key, Nanos now);
  void erase(BlockRecord& record);
  // All blocks of an operation; calls gone(record) for each before it goes.
  template <typename Gone>
  void erase_operation(uint32_t job, Sequence operation, Gone&& gone) {
    for (BlockRecord& r : records_) {
      if (!r.used || r.key.job != job || r.key.operation != operation) continue;
      gone(r);
      erase(r);
    }
  }

  // Notes that `contributor` has contributed. False, and nothing happens: it had before.
  bool add(BlockRecord& record, uint32_t contributor, Nanos now);
  bool has(const BlockRecord& record, uint32_t contributor) const;
  // Bit c: contributor c has contributed.
  std::span<const uint64_t> bits(const BlockRecord& record) const;

  uint32_t size() const { return size_; }
  uint32_t capacity() const { return static_cast<uint32_t>(records_.size()); }
  // i < capacity(). None: nothing is there.
  const BlockRecord* at(uint32_t i) const { return records_[i].used ? &records_[i] : nullptr; }
  size_t memory() const {
    return records_.size() * sizeof(BlockRecord) + far_.size() * sizeof(uint64_t);
  }

 private:
  uint64_t* words(BlockRecord& r) { return r.far != nullptr ? r.far : r.near; }

  const uint32_t words_;
  uint32_t size_ = 0;
  std::vector<BlockRecord> records_;
  std::vector<uint64_t> far_;
};

}  // namespace mcast::aggregation
