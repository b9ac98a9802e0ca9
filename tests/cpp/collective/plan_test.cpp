// Plans: what may be on its way to a receiver fits what its socket can queue.
#include "collective/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "wire/guarded_datagram.h"

namespace mcast {
namespace {

wire::Descriptor of(wire::Kind kind, uint64_t bytes) { return {kind, 0, kNoMember, bytes, ""}; }

// Of roots that take turns, one may have its window at a receiver that has not looked yet when the
// next begins with its own. A queue holds datagrams: headers are a third of the smallest, and a
// kernel's bookkeeping is 832 bytes of each, in a buffer of 8/5 of the budget.
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
        const size_t floor = 4 * datagram;  // a window is never less
        EXPECT_LE(plan.chains * plan.window * datagram, std::max(budget / 2, plan.chains * floor));
        EXPECT_LE(plan.chains * plan.widest * datagram, std::max(budget / 2, plan.chains * floor));
        EXPECT_GE(plan.window, plan.quantum + plan.batch);
        EXPECT_LE(plan.roots * plan.eager * chunk * datagram, budget / 4 * alone);  // of payload
      }
    }
  }
}

TEST(Plans, TwoWindowsOfEachChainFitAReceiversQueue) { two_windows_fit(0); }

TEST(Plans, WindowsOfAGuardedGroupFitToo) { two_windows_fit(wire::kGuardedExtra); }

// What a guard adds is taken off what may be on its way, and nothing else changes.
TEST(Plans, AGuardTakesRoomOfTheQueueOnly) {
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

}  // namespace
}  // namespace mcast
