// Compares ChunkSet with a set of numbers.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"
#include "protocol/chunk_set.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Chunk kBound = 60;

std::set<Chunk> numbers(const ChunkSet& chunks) {
  std::set<Chunk> all;
  Chunk end = 0;
  bool first = true;
  for (const ChunkRange& r : chunks) {
    EXPECT_LT(r.first, r.end);
    EXPECT_TRUE(first || r.first > end) << "ascending, with a gap";
    first = false;
    end = r.end;
    for (Chunk c = r.first; c < r.end; c++) all.insert(c);
  }
  return all;
}

std::vector<ChunkRange> some_runs(Rng& rng) {
  std::vector<ChunkRange> runs(rng.below(6));
  for (ChunkRange& r : runs) {
    r.first = static_cast<Chunk>(rng.below(kBound));
    r.end = r.first + static_cast<Chunk>(rng.below(12));
  }
  return runs;
}

std::set<Chunk> numbers(const std::vector<ChunkRange>& runs) {
  std::set<Chunk> all;
  for (const ChunkRange& r : runs) {
    for (Chunk c = r.first; c < r.end; c++) all.insert(c);
  }
  return all;
}

TEST(ChunkSet, IsASetOfNumbers) {
  for (const uint64_t seed : seeds(1000)) {
    Rng rng(seed);
    const std::vector<ChunkRange> a = some_runs(rng), b = some_runs(rng);
    const std::set<Chunk> x = numbers(a), y = numbers(b);
    const ChunkSet s(a), t(b);
    ASSERT_EQ(numbers(s), x) << seed;
    std::set<Chunk> both, either = x, rest;
    either.insert(y.begin(), y.end());
    for (const Chunk c : x) (y.count(c) ? both : rest).insert(c);
    EXPECT_EQ(numbers(s.common(t)), both) << seed;
    EXPECT_EQ(numbers(s.without(t)), rest) << seed;
    ChunkSet united = s;
    united.add(t);
    EXPECT_EQ(numbers(united), either) << seed;
    EXPECT_EQ(united.empty(), either.empty()) << seed;
  }
}

TEST(ChunkSet, TakeReturnsWhatWasThere) {
  ChunkSet s(std::vector<ChunkRange>{{0, 4}, {6, 10}});
  EXPECT_EQ(s.take({2, 8}), ChunkSet(std::vector<ChunkRange>{{2, 4}, {6, 8}}));
  EXPECT_EQ(s, ChunkSet(std::vector<ChunkRange>{{0, 2}, {8, 10}}));
  EXPECT_TRUE(s.take({2, 8}).empty());
}

TEST(ChunkSet, PopTakesFromTheFront) {
  ChunkSet s(std::vector<ChunkRange>{{3, 5}, {9, 10}});
  EXPECT_EQ(s.pop(1), (ChunkRange{3, 4}));
  EXPECT_EQ(s.pop(7), (ChunkRange{4, 5}));
  EXPECT_EQ(s.pop(7), (ChunkRange{9, 10}));
  EXPECT_TRUE(s.empty());
}

}  // namespace
}  // namespace mcast::test
