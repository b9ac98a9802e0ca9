// Bitmap: the chunks of a stream that are present. One bit per chunk; the number of set bits is
// kept up to date, so that checking for completeness is free. Bits are only ever set. One
// allocation of size/8 bytes. Not thread-safe.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace mcast {

class Bitmap {
 public:
  Bitmap() = default;
  // `size` <= 2^32 bits, all clear.
  explicit Bitmap(uint64_t size) : size_(size), words_((size + 63) / 64) {
    assert(size <= uint64_t{1} << 32);
  }

  uint64_t size() const noexcept { return size_; }
  // Number of set bits.
  uint64_t count() const noexcept { return count_; }
  // Returns true also for a bitmap without bits.
  bool full() const noexcept { return count_ == size_; }

  // Requires i < size() in both. Returns true if the bit was clear, and this call set it.
  bool test_and_set(uint64_t i) noexcept {
    assert(i < size_);
    uint64_t& word = words_[i / 64];
    const uint64_t old = word;
    word = old | (uint64_t{1} << (i % 64));
    const bool was_clear = word != old;
    count_ += was_clear;
    return was_clear;
  }
  bool test(uint64_t i) const noexcept {
    assert(i < size_);
    return (words_[i / 64] >> (i % 64)) & 1;
  }
  void set_all() noexcept;

  // The first clear (set) bit in [from, limit), or `limit` when there is none. limit <= size(); an
  // empty interval gives `limit`.
  uint64_t next_clear(uint64_t from, uint64_t limit) const noexcept {
    return scan(from, limit, ~uint64_t{0});
  }
  uint64_t next_set(uint64_t from, uint64_t limit) const noexcept { return scan(from, limit, 0); }

  // Calls fn(ChunkRange) for the maximal runs of clear bits in [from, end), ascending, at most
  // `max_ranges` of them. Returns where to go on: `end` when all were visited, else the start of
  // the first run left out. end <= size(), and < 2^32 so that it fits a Chunk. fn may set bits of
  // the range that it was given.
  template <typename Fn>
  uint64_t for_each_clear_range(uint64_t from, uint64_t end, size_t max_ranges, Fn&& fn) const {
    assert(end <= UINT32_MAX);
    uint64_t first = next_clear(from, end);
    for (; first < end && max_ranges > 0; --max_ranges) {
      const uint64_t stop = next_set(first, end);
      fn(ChunkRange{static_cast<Chunk>(first), static_cast<Chunk>(stop)});
      first = next_clear(stop, end);
    }
    return first;
  }

 private:
  // First bit in [from, limit) that differs from those of `flip`.
  uint64_t scan(uint64_t from, uint64_t limit, uint64_t flip) const noexcept {
    assert(limit <= size_);
    if (from >= limit) return limit;
    size_t at = from / 64;
    uint64_t word = (words_[at] ^ flip) & (~uint64_t{0} << (from % 64));
    const size_t last = (limit - 1) / 64;
    while (word == 0) {
      if (at == last) return limit;
      word = words_[++at] ^ flip;
    }
    const uint64_t found = at * 64 + static_cast<uint64_t>(std::countr_zero(word));
    return found < limit ? found : limit;
  }

  uint64_t size_ = 0;
  uint64_t count_ = 0;
  // Bits at and above size_ are meaningless: scan() never returns them.
  std::vector<uint64_t> words_;
};

inline void Bitmap::set_all() noexcept {
  for (uint64_t& word : words_) word = ~uint64_t{0};
  count_ = size_;
}

}  // namespace mcast
