// Lanes are pinned inside the affinity mask that the process has inherited.
#include "runtime/lane_cpu.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace mcast {
namespace {

std::vector<int> range(int first, int count) {
  std::vector<int> cpus(static_cast<size_t>(count));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

TEST(LaneCpu, RanksThatMayUseTheWholeHostShareNoCpu) {
  std::set<int> used;
  for (size_t rank = 0; rank < 4; rank++) {
    for (size_t lane = 0; lane < 2; lane++) {
      const int cpu = lane_cpu(range(0, 8), 8, 2, lane, 4, rank);
      EXPECT_TRUE(cpu >= 0 && used.insert(cpu).second) << cpu;
    }
  }
  EXPECT_EQ(lane_cpu(range(0, 7), 7, 2, 0, 4, 0), -1);
}

TEST(LaneCpu, ARankWithCpusOfItsOwnStaysOnThem) {
  for (size_t rank = 0; rank < 8; rank++) {
    const int first = static_cast<int>(rank) * 4;
    const int a = lane_cpu(range(first, 4), 32, 2, 0, 8, rank);
    const int b = lane_cpu(range(first, 4), 32, 2, 1, 8, rank);
    EXPECT_TRUE(a >= first && a < first + 4 && b >= first && b < first + 4 && a != b) << a << b;
  }
  EXPECT_EQ(lane_cpu({5}, 32, 2, 0, 1, 0), -1);
  EXPECT_EQ(lane_cpu({3, 9}, 32, 2, 1, 8, 7), 9);
}

}  // namespace
}  // namespace mcast
