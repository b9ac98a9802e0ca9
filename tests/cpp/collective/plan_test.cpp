// Plans: the data in flight to a receiver fits into its socket's queue.
#include "collective/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "support/place.h"
#include "wire/guarded_datagram.h"

namespace mcast {
namespace {

wire::Descriptor of(wire::Kind kind, uint64_t bytes) { return {kind, 0, kNoMember, bytes, ""}; }

// If roots take turns, one root's window may still be queued at a slow receiver when the next root
// begins with its own. A queue holds datagrams: headers are a third of the smallest one, and the
// kernel's bookkeeping takes 832 bytes of each in a buffer of 8/5 of the budget.
void two_windows_fit(size_t guard) {
  for (const size_t chunk : {64, 256, 1408, 8896}) {
    for (const size_t budget : {131'072, 266'240, 16'777'216}) {
      for (const uint32_t members : {2, 5, 40}) {
        Agreed agreed;
        agreed.members = members;
        agreed.chunk = chunk;
        agreed.guard = guard;
        agreed.budget = budget;
        const Plan plan = make_plan(of(wire::Kind::kAllgather, 64 << 20), agreed);
        const size_t alone = chunk + wire::kDatagramHeader, whole = alone + guard;
        const size_t datagram = std::max(whole, (whole + 832) * 5 / 8);
        const size_t floor = 4 * datagram;  // a window is never smaller
        EXPECT_LE(plan.chains * plan.window * datagram, std::max(budget / 2, plan.chains * floor));
        EXPECT_LE(plan.chains * plan.widest * datagram, std::max(budget / 2, plan.chains * floor));
        EXPECT_GE(plan.window, plan.quantum + plan.batch);
        EXPECT_LE(plan.roots * plan.eager * chunk * datagram, budget / 4 * alone);  // in payload
      }
    }
  }
}

TEST(Plans, TwoWindowsOfEachChainFitAReceiversQueue) { two_windows_fit(0); }

TEST(Plans, WindowsOfAGuardedGroupFitToo) { two_windows_fit(wire::kGuardedExtra); }

// The guard's bytes reduce the data in flight, and change nothing else.
TEST(Plans, GuardBytesOnlyReduceDataInFlight) {
  Agreed agreed;
  agreed.members = 2;
  agreed.chunk = 64;
  const wire::Descriptor large = of(wire::Kind::kAllgather, 64 << 20);
  const Plan off = make_plan(large, agreed);
  EXPECT_EQ(off.chains, 1u);
  EXPECT_EQ(off.window, 112u) << "half of the budget, of datagrams that take 580 bytes of it";
  EXPECT_EQ(off.eager, 42u);
  agreed.guard = wire::kGuardedExtra;
  const Plan guarded = make_plan(large, agreed);
  EXPECT_EQ(guarded.window, 110u) << "595 bytes";
  EXPECT_EQ(guarded.eager, 41u);
  EXPECT_EQ(guarded.chunks, off.chunks);
  EXPECT_EQ(guarded.chains, off.chains);
  EXPECT_EQ(guarded.tolerance, off.tolerance);
}

TEST(Plans, LoneRootMaySendAsMuchAsEight) {
  const struct {
    size_t eager, staging, lone;
  } rows[] = {
      {32 << 10, 4 << 20, 256 << 10},
      {16 << 10, 4 << 20, 128 << 10},
      {64 << 10, 4 << 20, 256 << 10},
      {1 << 20, 4 << 20, 1 << 20},
      {0, 4 << 20, 0},
      {32 << 10, 512 << 10, 128 << 10},
      {32 << 10, 0, 32 << 10},
      {32 << 10, 64 << 10, 32 << 10},
  };
  for (const auto& row : rows) {
    Agreed agreed;
    agreed.members = 8;
    agreed.eager = row.eager;
    agreed.staging = row.staging;
    agreed.budget = 64 << 20;
    SCOPED_TRACE("eager " + std::to_string(row.eager) + ", staging " + std::to_string(row.staging));
    EXPECT_TRUE(make_plan(of(wire::Kind::kBroadcast, row.lone), agreed).small);
    EXPECT_FALSE(make_plan(of(wire::Kind::kBroadcast, row.lone + 1), agreed).small);
    EXPECT_FALSE(make_plan(of(wire::Kind::kAllgather, row.eager + 1), agreed).small);
  }
}

// The protocol page defines which operations are small and how large windows are. Its formulas must
// give the code's values.
TEST(Plans, ExamplesOfTheProtocolPage) {
  std::ifstream page(std::string(test::kSourceDir) + "/docs/protocol.md");
  const std::regex row(R"(\| (broadcast|all_gather) \|( [\d,]+ \|){10})");
  size_t rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_match(line, row)) continue;
    rows++;
    const wire::Kind kind = line[2] == 'b' ? wire::Kind::kBroadcast : wire::Kind::kAllgather;
    std::erase(line, ',');
    std::replace(line.begin(), line.end(), '|', ' ');
    std::istringstream cells(line);
    std::string name;
    Agreed agreed;
    size_t queued, small;
    Chunk eager, window, widest;
    uint32_t chains;
    cells >> name >> agreed.chunk >> agreed.members >> agreed.budget >> agreed.guard >> queued >>
        small >> eager >> chains >> window >> widest;
    const Plan plan = make_plan(of(kind, 64 << 20), agreed);
    EXPECT_EQ(plan.eager, eager) << line;
    EXPECT_EQ(plan.chains, chains) << line;
    EXPECT_EQ(plan.window, window) << line;
    EXPECT_EQ(plan.widest, widest) << line;
    EXPECT_TRUE(make_plan(of(kind, small), agreed).small) << line;
    EXPECT_FALSE(make_plan(of(kind, small + 1), agreed).small) << line;
    // As in the page's formula.
    const size_t datagram = agreed.chunk + wire::kDatagramHeader;
    EXPECT_EQ(queued, std::max(datagram + agreed.guard, (datagram + agreed.guard + 832) * 5 / 8));
    const size_t unasked = plan.roots > 1 ? agreed.eager : 8 * agreed.eager;
    EXPECT_EQ(small, std::min(unasked, agreed.budget / 4 / plan.roots * datagram / queued));
  }
  EXPECT_EQ(rows, 7u);
}

}  // namespace
}  // namespace mcast
