#include "base/free_ranges.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace mcast {
namespace {

TEST(FreeRanges, AgreeWithAModel) {
  constexpr size_t kSize = 200;
  Rng rng(3);
  FreeRanges free(kSize);
  std::vector<bool> used(kSize);
  std::vector<std::pair<uint64_t, size_t>> taken;
  const auto first_fit = [&](size_t bytes) -> std::optional<uint64_t> {
    size_t run = 0;
    for (size_t i = 0; i < kSize; i++) {
      run = used[i] ? 0 : run + 1;
      if (run == bytes) return i + 1 - bytes;
    }
    return std::nullopt;
  };
  for (int i = 0; i < 5000; i++) {
    if (!taken.empty() && rng.chance(0.5)) {
      std::swap(taken[rng.below(taken.size())], taken.back());
      const auto [at, bytes] = taken.back();
      taken.pop_back();
      std::fill_n(used.begin() + static_cast<ptrdiff_t>(at), bytes, false);
      free.give_back(at, {bytes, 0});
      continue;
    }
    const size_t bytes = 1 + rng.below(40);
    const auto got = free.take(bytes);
    ASSERT_EQ(got ? std::optional(got->at) : std::nullopt, first_fit(bytes));
    if (!got) continue;
    std::fill_n(used.begin() + static_cast<ptrdiff_t>(got->at), bytes, true);
    taken.emplace_back(got->at, bytes);
  }
}

TEST(FreeRanges, AccountOfWhatIsTouched) {
  FreeRanges free(100);
  for (const uint64_t at : {0, 10, 20}) EXPECT_EQ(free.take(10)->at, at);
  free.give_back(10, {10, 10});
  free.give_back(0, {10, 10});
  EXPECT_EQ(free.take(5)->touched, 5u);
  EXPECT_EQ(free.take(40)->at, 30u);
  free.give_back(20, {10, 10});
  std::vector<uint64_t> seen;
  const auto never = [] { return false; };
  free.untouch(never, [](uint64_t, const FreeRanges::Range&) { return false; });
  free.untouch(never, [&](uint64_t at, const FreeRanges::Range& range) {
    seen.push_back(at);
    EXPECT_EQ(range.touched, 25u);
    return true;
  });
  EXPECT_EQ(seen, std::vector<uint64_t>{5});
  EXPECT_EQ(free.take(25)->touched, 0u);
}

}  // namespace
}  // namespace mcast
