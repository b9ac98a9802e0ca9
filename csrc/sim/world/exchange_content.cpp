// Each pair of ranks has its own pattern (content.h), so a block from or for another rank never
// compares equal.
#include "sim/world/exchange_content.h"

#include <algorithm>

#include "base/rng.h"

namespace mcast::sim {

namespace {

uint64_t length_at(const ExchangeShape& shape, uint32_t self, uint32_t other, Side side) {
  return side == Side::kOut ? shape.length(self, other) : shape.length(other, self);
}

// Pattern of the blocks for one rank in one operation.
uint64_t pattern_of(uint64_t op, uint32_t to) { return mix64(op * 4096 + to); }

}  // namespace

uint64_t ExchangeShape::length(uint32_t from, uint32_t to) const {
  if (kind == wire::Kind::kGather) return to == root ? bytes : 0;
  if (kind == wire::Kind::kScatter) return from == root ? bytes : 0;
  if (splits == 0) return bytes;
  Rng rng(mix64(mix64(splits) + from * 65536ull + to));
  // For every third seed one rank gets nearly all bytes.
  const bool few = splits % 3 == 0 && to != splits / 3 % ranks;
  const uint64_t most = few ? bytes / 64 : bytes;
  switch (rng.below(8)) {
    case 0:
    case 1:
      return 0;
    case 2:
      return std::min<uint64_t>(1, most);
    case 3:
      return most / 64;
    case 4:
    case 5:
      return most;
    default:
      return rng.below(most + 1);
  }
}

uint64_t ExchangeShape::crossing() const {
  uint64_t all = 0;
  for (uint32_t from = 0; from < ranks; from++) {
    for (uint32_t to = 0; to < ranks; to++) all += from != to ? length(from, to) : 0;
  }
  return all;
}

std::vector<Slice> exchange_blocks(const ExchangeShape& shape, uint32_t self, Side side,
                                   const std::shared_ptr<Pages>& pages) {
  const auto region = std::make_shared<Region>(pages->data(), pages->size(), pages);
  std::vector<Slice> blocks;
  size_t at = 0;
  for (uint32_t other = 0; other < shape.ranks; other++) {
    const uint64_t bytes = length_at(shape, self, other, side);
    blocks.push_back({region, at, bytes});
    at += bytes;
  }
  return blocks;
}

std::shared_ptr<Pages> exchange_pages(const ExchangeShape& shape, uint64_t op, uint32_t self,
                                      Side side) {
  size_t all = 0;
  for (uint32_t other = 0; other < shape.ranks; other++) {
    all += length_at(shape, self, other, side);
  }
  auto pages = std::make_shared<Pages>(all);
  size_t at = 0;
  for (uint32_t to = 0; side == Side::kOut && to < shape.ranks; to++) {
    const uint64_t bytes = shape.length(self, to);
    fill_pattern(pattern_of(op, to), self, pages->bytes().subspan(at, bytes));
    at += bytes;
  }
  return pages;
}

std::string wrong_blocks(const ExchangeShape& shape, uint64_t op, uint32_t self,
                         const Pages& pages) {
  size_t at = 0;
  for (uint32_t from = 0; from < shape.ranks; from++) {
    const uint64_t bytes = shape.length(from, self);
    const size_t byte =
        check_pattern(pattern_of(op, self), from, ConstBytes(pages.data() + at, bytes));
    if (byte != bytes) {
      return "wrong byte " + std::to_string(byte) + " of the block of rank " +
             std::to_string(from) + " at rank " + std::to_string(self) + " of operation " +
             std::to_string(op);
    }
    at += bytes;
  }
  return "";
}

}  // namespace mcast::sim
