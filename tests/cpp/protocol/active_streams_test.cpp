// ActiveStreams lists each stream once, in the order of arrival, until the visitor releases it.
#include "protocol/active_streams.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

TEST(ActiveStreams, AreListedOnceInTheirOrder) {
  ActiveStreams active(5);
  EXPECT_TRUE(active.list().empty());
  for (const uint32_t stream : {3u, 1u, 3u, 4u, 1u}) active.add(stream);
  EXPECT_EQ(active.list(), (std::vector<uint32_t>{3, 1, 4}));
}

TEST(ActiveStreams, OneThatWasLetGoComesBackAtTheEnd) {
  ActiveStreams active(4);
  for (const uint32_t stream : {2u, 0u, 3u}) active.add(stream);
  std::vector<uint32_t> seen;
  active.visit([&](uint32_t stream) {
    seen.push_back(stream);
    return stream != 2;
  });
  EXPECT_EQ(seen, (std::vector<uint32_t>{2, 0, 3}));
  EXPECT_EQ(active.list(), (std::vector<uint32_t>{0, 3}));
  active.add(2);
  EXPECT_EQ(active.list(), (std::vector<uint32_t>{0, 3, 2}));
}

// Compares it with a plain list under random calls.
TEST(ActiveStreams, AreAListWithoutRepetition) {
  for_seeds(seeds(50), [](uint64_t seed) -> std::string {
    Rng rng(seed);
    const auto streams = static_cast<uint32_t>(1 + rng.below(20));
    ActiveStreams active(streams);
    std::vector<uint32_t> model;
    for (int step = 0; step < 200; step++) {
      if (rng.chance(0.8)) {
        const auto stream = static_cast<uint32_t>(rng.below(streams));
        active.add(stream);
        if (std::find(model.begin(), model.end(), stream) == model.end()) model.push_back(stream);
      } else {
        const uint64_t gone = rng.next();
        const auto keep = [&](uint32_t stream) { return (gone >> (stream % 64) & 1) == 0; };
        active.visit(keep);
        model.erase(
            std::remove_if(model.begin(), model.end(), [&](uint32_t s) { return !keep(s); }),
            model.end());
      }
      if (active.list() != model) return "another list after step " + std::to_string(step);
    }
    return "";
  });
}

}  // namespace
}  // namespace mcast::test
