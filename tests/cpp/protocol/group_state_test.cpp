// The machines that keep a group together, cell by cell: tree, chains, credit, completion,
// liveness.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "protocol/chain.h"
#include "protocol/completion.h"
#include "protocol/credit_tree.h"
#include "protocol/liveness.h"
// liveness.
#include "protocol/tree.h"
#include "support/seeds.h"

namespace mcast {
namespace {

// ---- tree ----

TEST(Tree, ParentsChildrenAndHopsAgree) {
  for (const uint32_t arity : {2u, 3u, 4u, 32u, 1024u}) {
    for (const uint32_t size : {1u, 2u, 3u, 5u, 33u, 34u, 100u, 1057u}) {
      const Tree tree(size, arity);
      uint32_t linked = 0;
      for (uint32_t m = 0; m < size; m++) {
        const auto self = static_cast<Member>(m);
        for (uint32_t c = 0; c < tree.children(self); c++) {
          const auto child = static_cast<Member>(tree.first_child(self) + c);
          ASSERT_LT(child, size);
          EXPECT_EQ(tree.parent(child), self);
          EXPECT_EQ(tree.child_index(child), c);
          EXPECT_TRUE(tree.is_child(child, self));
          EXPECT_FALSE(tree.is_child(self, child));
          linked++;
        }
      }
      EXPECT_EQ(linked, size - 1);
    }
  }
}

TEST(Tree, EveryRouteArrives) {
  const Tree tree(50, 3);
  for (Member from = 0; from < 50; from++) {
    for (Member to = 0; to < 50; to++) {
      Member at = from;
      int hops = 0;
      while (at != to && hops++ < 20) {
        const Member next = tree.next_hop(at, to);
        ASSERT_TRUE(tree.is_child(next, at) || tree.is_child(at, next));
        at = next;
      }
      EXPECT_EQ(at, to);
    }
  }
}

TEST(Tree, LargestGroupFitsSixteenBitMembers) {
  for (const uint32_t arity : {2u, 1024u}) {
    const Tree tree(65534, arity);
    EXPECT_EQ(tree.children(65533), 0u);
    Member m = 65533;
    int up = 0;
    while (!tree.is_top(m) && up++ < 17) m = tree.parent(m);
    EXPECT_EQ(m, Tree::kTop);
    EXPECT_EQ(tree.next_hop(0, 65533), tree.next_hop(0, tree.parent(65533)));
    uint64_t linked = 0;
    for (uint32_t i = 0; i < 65534; i++) linked += tree.children(static_cast<Member>(i));
    EXPECT_EQ(linked, 65533u);
  }
}

// ---- chains ----

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

// ---- credit ----

using Changed = std::vector<std::pair<uint32_t, CreditTree::Least>>;

TEST(CreditTree, NothingBeforeAllHavePostedThenEverySlotOnce) {
  CreditTree t(3, 2);
  Changed changed;
  t.post_own();
  for (uint32_t s = 0; s < 3; s++) t.set_own(s, {0, 10 + s, 0});
  t.post_child(1);
  for (uint32_t s = 0; s < 3; s++) t.set_child(1, s, {0, 5, 0});
  t.collect(changed);
  EXPECT_TRUE(changed.empty());
  EXPECT_FALSE(t.all_posted());
  t.post_child(0);
  for (uint32_t s = 0; s < 3; s++) t.set_child(0, s, {0, 7 - 2 * s, 0});
  t.collect(changed);
  ASSERT_EQ(changed.size(), 3u);
  for (const auto& [slot, least] : changed) EXPECT_EQ(least.limit, slot == 2 ? 3u : 5u);
  t.collect(changed);
  EXPECT_TRUE(changed.empty());
}

TEST(CreditTree, LeastMarkLeastLimitMostLost) {
  CreditTree t(1, 2);
  Changed changed;
  t.post_own();
  t.post_child(0);
  t.post_child(1);
  t.set_own(0, CreditTree::unbounded());
  t.set_child(0, 0, {4, 20, 7});
  t.set_child(1, 0, {9, 11, 2});
  t.collect(changed);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0].second, (CreditTree::Least{4, 11, 7}));
  t.set_child(0, 0, {30, 50, 7});
  t.collect(changed);
  EXPECT_EQ(changed[0].second, (CreditTree::Least{9, 11, 7}));
}

TEST(CreditTree, OnlyTouchedSlotsAreReported) {
  CreditTree t(100, 0);
  Changed changed;
  t.post_own();
  t.collect(changed);
  EXPECT_EQ(changed.size(), 100u);
  t.set_own(42, {1, 2, 0});
  t.set_own(42, {2, 3, 0});
  t.collect(changed);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0].first, 42u);
}

// ---- completion ----

TEST(Completion, ReportsAreCumulativeAndHeldALittle) {
  CompletionTracker t(0, false, 100);
  for (Sequence s = 0; s < 5; s++) t.on_post(s, 10 + s);
  CompletionTracker::Up up;
  t.complete_own(2, false, 1000);
  EXPECT_EQ(t.deadline(), 1100);
  EXPECT_FALSE(t.report_due(1099, up));
  t.complete_own(4, false, 1050);
  EXPECT_TRUE(t.report_due(1100, up));
  EXPECT_EQ(up.first, 0u);
  EXPECT_EQ(up.end, 4u);
  EXPECT_EQ(up.hashes, (std::vector<uint32_t>{10, 11, 12, 13}));
  EXPECT_FALSE(t.report_due(5000, up));
  t.complete_own(5, true, 6000);
  EXPECT_TRUE(t.report_due(6000, up)) << "urgent";
  EXPECT_EQ(up.first, 4u);
}

TEST(Completion, ASubtreeIsAsCompleteAsItsLastChild) {
  CompletionTracker t(2, true, 100);
  for (Sequence s = 0; s < 3; s++) t.on_post(s, s);
  Sequence where = 0;
  uint32_t other = 0;
  t.complete_own(3, true, 0);
  EXPECT_EQ(t.subtree_complete(), 0u);
  const std::vector<uint32_t> two = {0, 1}, three = {0, 1, 2}, third = {2};
  EXPECT_EQ(t.on_child(0, 3, 0, three, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.on_child(1, 2, 0, two, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.subtree_complete(), 2u);
  EXPECT_TRUE(t.on_released(2));
  EXPECT_FALSE(t.on_released(2));
  EXPECT_FALSE(t.on_released(1));
  EXPECT_EQ(t.on_child(1, 3, 2, third, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.subtree_complete(), 3u);
  CompletionTracker::Up up;
  EXPECT_FALSE(t.report_due(kSecond, up)) << "the top has nobody to report to";
}

TEST(Completion, OtherHashesAreMismatchesWhoeverComesFirst) {
  Sequence where = 9;
  uint32_t other = 9;
  const std::vector<uint32_t> one = {1}, two = {2};
  {
    CompletionTracker t(1, true, 0);
    t.on_post(0, 1);
    EXPECT_EQ(t.on_child(0, 1, 0, two, where, other, 0), CompletionTracker::Report::kMismatch);
    EXPECT_EQ(where, 0u);
    EXPECT_EQ(other, CompletionTracker::kOwn);
  }
  {
    CompletionTracker t(2, true, 0);
    EXPECT_EQ(t.on_child(1, 1, 0, one, where, other, 0), CompletionTracker::Report::kOk);
    EXPECT_EQ(t.on_child(0, 1, 0, two, where, other, 0), CompletionTracker::Report::kMismatch);
    EXPECT_EQ(other, 1u);
    EXPECT_EQ(t.on_post(0, 2), std::optional<uint32_t>(1u));
  }
  {
    CompletionTracker t(1, true, 0);
    t.on_child(0, 1, 0, one, where, other, 0);
    EXPECT_EQ(t.on_post(0, 1), std::nullopt);
  }
}

TEST(Completion, ReportsThatGoBackOrDoNotFitAreInvalid) {
  CompletionTracker t(1, true, 0);
  Sequence where = 0;
  uint32_t other = 0;
  const std::vector<uint32_t> two = {5, 6}, none;
  EXPECT_EQ(t.on_child(0, 3, 0, two, where, other, 0), CompletionTracker::Report::kInvalid);
  EXPECT_EQ(t.on_child(0, 3, 1, two, where, other, 0), CompletionTracker::Report::kInvalid)
      << "hole";
  EXPECT_EQ(t.on_child(0, 2, 0, two, where, other, 0), CompletionTracker::Report::kOk);
  EXPECT_EQ(t.on_child(0, 1, 1, none, where, other, 0), CompletionTracker::Report::kInvalid);
  EXPECT_EQ(t.on_child(0, 0, 2, none, where, other, 0), CompletionTracker::Report::kInvalid);
  EXPECT_EQ(t.child_complete(0), 2u);
}

TEST(Completion, ManyOpsAtOnceAreReportedInSlicesThatFitAFrame) {
  CompletionTracker t(0, false, 100);
  constexpr Sequence kOps = 3 * CompletionTracker::kMaxReport + 17;
  for (Sequence s = 0; s < kOps; s++) t.on_post(s, s);
  t.complete_own(kOps, true, 0);
  CompletionTracker::Up up;
  Sequence next = 0;
  while (t.report_due(0, up)) {
    EXPECT_EQ(up.first, next);
    EXPECT_LE(up.hashes.size(), CompletionTracker::kMaxReport);
    EXPECT_EQ(up.hashes.size(), up.end - up.first);
    EXPECT_EQ(up.hashes.back(), up.end - 1);
    next = up.end;
  }
  EXPECT_EQ(next, kOps);
  EXPECT_EQ(t.deadline(), kNever);
}

// ---- liveness ----

TEST(Liveness, SilenceCountsOnlyWhileSomethingIsInFlight) {
  Liveness l({3, 1, 3}, 8 * kSecond);
  EXPECT_EQ(l.watched(), (std::vector<Member>{1, 3}));
  EXPECT_EQ(l.deadline(), kNever);
  EXPECT_EQ(l.silent(100 * kSecond), kNoMember);
  l.set_active(true, 100 * kSecond);
  EXPECT_EQ(l.silent(108 * kSecond), kNoMember);
  l.heard(3, 105 * kSecond);
  EXPECT_EQ(l.silent(108 * kSecond + 1), 1);
  EXPECT_EQ(l.silence(1, 109 * kSecond), 9 * kSecond);
  l.set_active(false, 109 * kSecond);
  EXPECT_EQ(l.silent(200 * kSecond), kNoMember);
  l.set_active(true, 200 * kSecond);
  EXPECT_EQ(l.silent(201 * kSecond), kNoMember) << "idle time is no silence";
}

TEST(Liveness, PingsAfterAQuietIntervalAndNotMoreOften) {
  Liveness l({1, 2}, 8 * kSecond);
  l.set_active(true, 0);
  std::vector<Member> ping;
  l.due(kSecond - 1, ping);
  EXPECT_TRUE(ping.empty());
  l.heard(2, kSecond / 2);
  l.due(kSecond, ping);
  EXPECT_EQ(ping, (std::vector<Member>{1}));
  l.due(kSecond + 1, ping);
  EXPECT_TRUE(ping.empty());
  l.due(2 * kSecond, ping);
  EXPECT_EQ(ping, (std::vector<Member>{1, 2}));
}

TEST(Liveness, OurOwnAbsenceIsNotTheirSilence) {
  Liveness l({1}, 8 * kSecond);
  l.set_active(true, 0);
  for (Nanos t = 0; t <= 7 * kSecond; t += 500 * kMilli) l.on_poll(t);
  l.on_poll(60 * kSecond);  // stopped for 53 s
  EXPECT_EQ(l.silent(60 * kSecond), kNoMember);
  for (Nanos t = 60 * kSecond; t <= 61 * kSecond + 1; t += 500 * kMilli) l.on_poll(t);
  EXPECT_EQ(l.silent(61 * kSecond + 1), 1) << "the silence of before goes on";
}

TEST(Liveness, TheDeadlineIsTheNextPingOrTheVerdict) {
  Liveness l({1}, 8 * kSecond);
  l.set_active(true, 0);
  EXPECT_EQ(l.deadline(), kSecond);
  std::vector<Member> ping;
  l.due(kSecond, ping);
  EXPECT_EQ(l.deadline(), 2 * kSecond);
  l.heard(9, 50);  // not watched
  EXPECT_EQ(l.silence(9, 60 * kSecond), 0);
}

TEST(Liveness, WhoHasNotBeenHeardOfYetIsNotMissed) {
  Liveness l({1, 2}, 8 * kSecond);
  EXPECT_TRUE(l.met(1));
  l.await_first_words();
  l.set_active(true, 0);
  EXPECT_EQ(l.deadline(), kNever);
  l.heard(2, 5 * kSecond);
  EXPECT_TRUE(l.met(2));
  EXPECT_FALSE(l.met(1));
  EXPECT_TRUE(l.met(9)) << "not watched";
  std::vector<Member> ping;
  l.due(100 * kSecond, ping);
  EXPECT_EQ(ping, (std::vector<Member>{2}));
  EXPECT_EQ(l.silent(100 * kSecond), 2);
  l.heard(2, 100 * kSecond);
  EXPECT_EQ(l.silent(100 * kSecond), kNoMember);
  l.all_met(100 * kSecond);
  EXPECT_EQ(l.silent(108 * kSecond), kNoMember);
  l.heard(2, 105 * kSecond);
  EXPECT_EQ(l.silent(109 * kSecond), 1);
}

}  // namespace
}  // namespace mcast
