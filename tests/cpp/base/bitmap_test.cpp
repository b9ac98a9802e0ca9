// Compares the bitmap with std::vector<bool> under random operations and at the edges of words.
#include "base/bitmap.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "support/seeds.h"

namespace mcast {
namespace {

uint64_t model_next(const std::vector<bool>& model, uint64_t from, uint64_t limit, bool wanted) {
  for (uint64_t i = from; i < limit; ++i) {
    if (model[i] == wanted) return i;
  }
  return limit;
}

std::vector<ChunkRange> model_ranges(const std::vector<bool>& model, uint64_t from, uint64_t end) {
  std::vector<ChunkRange> ranges;
  for (uint64_t i = from; i < end; ++i) {
    if (model[i]) continue;
    if (!ranges.empty() && ranges.back().end == i) {
      ++ranges.back().end;
    } else {
      ranges.push_back({static_cast<Chunk>(i), static_cast<Chunk>(i + 1)});
    }
  }
  return ranges;
}

std::vector<ChunkRange> clear_ranges(const Bitmap& bitmap, uint64_t from, uint64_t end, size_t most,
                                     uint64_t* stopped) {
  std::vector<ChunkRange> ranges;
  *stopped = bitmap.for_each_clear_range(from, end, most,
                                         [&](ChunkRange range) { ranges.push_back(range); });
  return ranges;
}

void check_against_model(const Bitmap& bitmap, const std::vector<bool>& model, Rng& rng) {
  const uint64_t n = model.size();
  uint64_t count = 0;
  for (uint64_t i = 0; i < n; ++i) {
    ASSERT_EQ(bitmap.test(i), model[i]) << i;
    count += model[i];
  }
  ASSERT_EQ(bitmap.count(), count);
  ASSERT_EQ(bitmap.full(), count == n);
  for (int probe = 0; probe < 50; ++probe) {
    const uint64_t from = rng.below(n + 2), limit = rng.below(n + 1);
    const uint64_t start = from < limit ? from : limit;
    ASSERT_EQ(bitmap.next_clear(from, limit), model_next(model, start, limit, false));
    ASSERT_EQ(bitmap.next_set(from, limit), model_next(model, start, limit, true));

    const size_t most = rng.below(6);
    uint64_t stopped = 0;
    auto expected = model_ranges(model, start, limit);
    const auto got = clear_ranges(bitmap, from, limit, most, &stopped);
    const uint64_t resume = expected.size() > most ? expected[most].first : limit;
    if (expected.size() > most) expected.resize(most);
    ASSERT_EQ(got, expected);
    ASSERT_EQ(stopped, resume);
  }
}

TEST(Bitmap, AgreesWithTheModel) {
  for (const uint64_t seed : test::seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const uint64_t n = seed < 10 ? 60 + seed : 1 + rng.below(1000);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " size " << n);
    Bitmap bitmap(n);
    std::vector<bool> model(n);
    ASSERT_EQ(bitmap.size(), n);
    // Covers both sparse and dense maps: from empty to nearly full.
    for (int phase = 0; phase < 6; ++phase) {
      check_against_model(bitmap, model, rng);
      if (testing::Test::HasFatalFailure()) return;
      for (uint64_t step = 0; step < n / 2; ++step) {
        const uint64_t i = rng.below(n);
        ASSERT_EQ(bitmap.test_and_set(i), !model[i]);
        model[i] = true;
      }
    }
  }
}

TEST(Bitmap, ASecondSetIsNoProgress) {
  Bitmap bitmap(10);
  EXPECT_TRUE(bitmap.test_and_set(3));
  EXPECT_FALSE(bitmap.test_and_set(3));
  EXPECT_EQ(bitmap.count(), 1u);
}

TEST(Bitmap, NoBitsIsFull) {
  Bitmap bitmap(0);
  EXPECT_TRUE(bitmap.full());
  EXPECT_TRUE(Bitmap().full());
  bitmap.set_all();
  EXPECT_EQ(bitmap.count(), 0u);
  EXPECT_EQ(bitmap.next_clear(0, 0), 0u);
  uint64_t stopped = 1;
  EXPECT_TRUE(clear_ranges(bitmap, 0, 0, 5, &stopped).empty());
  EXPECT_EQ(stopped, 0u);
}

TEST(Bitmap, SetAllFillsSizesAtWordEdgesExactly) {
  for (uint64_t n : {1, 63, 64, 65, 127, 128, 129}) {
    Bitmap bitmap(n);
    bitmap.test_and_set(0);
    bitmap.set_all();
    EXPECT_TRUE(bitmap.full()) << n;
    EXPECT_EQ(bitmap.count(), n);
    EXPECT_EQ(bitmap.next_clear(0, n), n);
    EXPECT_FALSE(bitmap.test_and_set(n - 1));
  }
}

TEST(Bitmap, FillsUpOneByOne) {
  Bitmap bitmap(130);
  for (uint64_t i = 130; i-- > 0;) {
    EXPECT_FALSE(bitmap.full());
    EXPECT_EQ(bitmap.next_clear(0, 130), 0u);
    EXPECT_TRUE(bitmap.test_and_set(i));
    EXPECT_EQ(bitmap.next_set(0, 130), i);
  }
  EXPECT_TRUE(bitmap.full());
}

TEST(Bitmap, AVisitorMaySetTheRangeItWasGiven) {
  Bitmap bitmap(200);
  for (uint64_t i = 50; i < 150; i += 10) bitmap.test_and_set(i);
  uint64_t visited = 0;
  const uint64_t stopped = bitmap.for_each_clear_range(0, 200, 1000, [&](ChunkRange range) {
    for (Chunk i = range.first; i < range.end; ++i) EXPECT_TRUE(bitmap.test_and_set(i));
    visited += range.size();
  });
  EXPECT_EQ(stopped, 200u);
  EXPECT_EQ(visited, 190u);
  EXPECT_TRUE(bitmap.full());
}

TEST(Bitmap, ResumingVisitsEveryRangeOnce) {
  Bitmap bitmap(1000);
  for (uint64_t i = 0; i < 1000; i += 3) bitmap.test_and_set(i);
  uint64_t clear = 0, calls = 0;
  for (uint64_t at = 0; at < 1000; ++calls) {
    at = bitmap.for_each_clear_range(at, 1000, 7, [&](ChunkRange range) { clear += range.size(); });
  }
  EXPECT_EQ(clear, 1000 - bitmap.count());
  EXPECT_EQ(calls, (333 + 6) / 7u);
}

}  // namespace
}  // namespace mcast
