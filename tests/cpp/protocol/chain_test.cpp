// Chains: whose turn it is to send a large all-gather's block.
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

// Any order of progress: every root gets exactly one turn, at most M send at once, in member order
// inside a chain.
TEST(Chains, EveryRootGetsOneTurn) {
  for (const uint64_t seed : test::seeds(500)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const auto p = static_cast<uint32_t>(1 + rng.below(20)),
               m = static_cast<uint32_t>(1 + rng.below(22));
    const Chains chains(p, m);
    std::vector<int> state(p, 0);  // 0 waiting, 1 sending, 2 ended
    const auto started = [&](Member i) { return state[i] > 0; };
    const auto ended = [&](Member i) { return state[i] == 2; };
    const auto no = [](Member) { return false; };
    std::vector<uint32_t> order;
    for (int turn = 0; turn < 10000 && order.size() < p; turn++) {
      const auto self = static_cast<Member>(rng.below(p));
      if (state[self] == 0 && chains.my_turn(self, true, started, ended, no)) {
        state[self] = 1;
        order.push_back(self);
      } else if (state[self] == 1 && rng.chance(0.5)) {
        state[self] = 2;
      }
      ASSERT_LE(std::count(state.begin(), state.end(), 1), static_cast<long>(chains.chains()));
    }
    ASSERT_EQ(order.size(), p) << "seed " << seed;
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
  const Chains chains(4, 1);
  std::vector<int> state(4, 0);
  const auto started = [&](Member i) { return state[i] > 0; };
  const auto ended = [&](Member i) { return state[i] == 2; };
  const auto skip0 = [](Member i) { return i == 0; };
  const auto no = [](Member) { return false; };
  EXPECT_FALSE(chains.my_turn(1, true, started, ended, no));
  EXPECT_TRUE(chains.my_turn(1, true, started, ended, skip0));
  state[1] = 1;
  EXPECT_FALSE(chains.my_turn(2, true, started, ended, skip0)) << "the turn is taken";
  EXPECT_FALSE(chains.my_turn(0, true, started, ended, no)) << "the turn is taken";
  state[1] = 2;
  EXPECT_TRUE(chains.my_turn(0, true, started, ended, no));
  state[0] = 2;
  EXPECT_TRUE(chains.my_turn(2, true, started, ended, no));
}

TEST(Chains, OpensOnlyWhenEarlierOperationsAreOutOfTheWay) {
  const Chains chains(4, 2);
  const auto none = [](Member) { return false; };
  EXPECT_FALSE(chains.my_turn(0, false, none, none, none));
  EXPECT_TRUE(chains.my_turn(0, true, none, none, none));
}

}  // namespace
}  // namespace mcast
