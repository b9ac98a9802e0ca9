// Chains: which root of a large all-gather sends next.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/rng.h"
#include "protocol/chain.h"
#include "support/seeds.h"

namespace mcast {
namespace {

TEST(Chains, ContiguousRunsThatCoverAllMembers) {
  for (uint32_t p = 1; p <= 40; p++) {
    for (uint32_t m = 0; m <= p + 2; m++) {
      const Chains chains(p, m);
      EXPECT_EQ(chains.chains(), std::min(std::max(m, 1u), p));
      uint32_t next = 0, least = p, most = 0;
      for (uint32_t c = 0; c < chains.chains(); c++) {
        ASSERT_EQ(chains.first(c), next);
        ASSERT_GT(chains.end(c), next);
        const uint32_t length = chains.end(c) - next;
        least = std::min(least, length);
        most = std::max(most, length);
        for (uint32_t i = next; i < chains.end(c); i++) {
          ASSERT_EQ(chains.chain_of(static_cast<Member>(i)), c) << p << " " << m << " " << i;
        }
        next = chains.end(c);
      }
      ASSERT_EQ(next, p);
      EXPECT_LE(most - least, 1u);
    }
  }
}

// Roots with blocks of this many chunks, each of them waiting, sending or done.
struct Roots {
  std::vector<Chunk> left;
  std::vector<bool> started;
  Roots(uint32_t p, Chunk chunks) : left(p, chunks), started(p, false) {}

  bool may_start(const Chains& chains, Member self, Chunk near, bool pass_over = false,
                 bool may_open = true) const {
    const auto ahead = chains.ahead(
        self, [&](Member m) { return left[m]; }, [&](Member m) { return bool(started[m]); });
    return Chains::my_turn(ahead, near, may_open, pass_over);
  }
};

// In any order of progress, every root sends exactly once, in member order within a chain. When a
// root begins, the roots that have begun before have at most `near` chunks left together, however
// short the blocks are.
TEST(Chains, EveryRootGetsOneTurn) {
  for (const uint64_t seed : test::seeds(500)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const auto p = static_cast<uint32_t>(1 + rng.below(20)),
               m = static_cast<uint32_t>(1 + rng.below(22));
    const Chains chains(p, m);
    const auto chunks = static_cast<Chunk>(1 + rng.below(20)),
               near = static_cast<Chunk>(rng.below(20));
    Roots roots(p, chunks);
    std::vector<Member> order;
    for (int turn = 0; turn < 10000 && order.size() < p; turn++) {
      const auto self = static_cast<Member>(rng.below(p));
      if (!roots.started[self] && roots.may_start(chains, self, near)) {
        Chunk others = 0;
        for (Member i = 0; i < p; i++) {
          const bool beside = chains.chain_of(i) == chains.chain_of(self);
          if (beside && roots.started[i]) others += roots.left[i];
        }
        ASSERT_LE(others, near);
        roots.started[self] = true;
        order.push_back(self);
      } else if (roots.started[self] && roots.left[self] > 0) {
        roots.left[self] -= static_cast<Chunk>(1 + rng.below(roots.left[self]));
      }
    }
    ASSERT_EQ(order.size(), p) << "seed " << seed;
    if (chunks <= near) continue;  // roots that have not begun are passed over too
    std::map<uint32_t, uint32_t> last;
    for (const uint32_t i : order) {
      const uint32_t c = chains.chain_of(static_cast<Member>(i));
      if (last.count(c)) {
        ASSERT_GT(i, last[c]);
      }
      last[c] = i;
    }
  }
}

TEST(Chains, ALatePredecessorIsPassedOverAndStillGetsItsTurn) {
  constexpr Chunk kNear = 3;
  const Chains chains(4, 1);
  Roots roots(4, 10);
  EXPECT_FALSE(roots.may_start(chains, 1, kNear));
  EXPECT_TRUE(roots.may_start(chains, 1, kNear, true));
  roots.started[1] = true;
  EXPECT_FALSE(roots.may_start(chains, 2, kNear, true)) << "the turn is taken";
  EXPECT_FALSE(roots.may_start(chains, 0, kNear)) << "the turn is taken";
  roots.left[1] = 3;
  EXPECT_TRUE(roots.may_start(chains, 0, kNear));
  roots.started[0] = true;
  roots.left[0] = roots.left[1] = 0;
  EXPECT_TRUE(roots.may_start(chains, 2, kNear, true));
}

TEST(Chains, OpensOnlyWhenEarlierOperationsAreOutOfTheWay) {
  const Chains chains(4, 2);
  const Roots roots(4, 10);
  EXPECT_FALSE(roots.may_start(chains, 0, 3, false, false));
  EXPECT_TRUE(roots.may_start(chains, 0, 3, false, true));
}

}  // namespace
}  // namespace mcast
