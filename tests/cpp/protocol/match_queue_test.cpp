// MatchQueue: which receive takes which message.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "protocol/match_queue.h"

namespace mcast::test {
namespace {

constexpr Member kAnyOne = MatchQueue::kAnySource;
using Sent = MatchQueue::Message;

TEST(MatchQueue, OldestReceiveTakesTheMessage) {
  MatchQueue q;
  EXPECT_FALSE(q.post(10, 1, 7));
  EXPECT_FALSE(q.post(11, kAnyOne, 7));
  EXPECT_FALSE(q.post(12, 1, 7));
  EXPECT_TRUE(q.awaits(1));
  EXPECT_FALSE(q.awaits(2));
  EXPECT_EQ(q.awaited(), (std::vector<Member>{1, kAnyOne}));
  EXPECT_EQ(q.waiting(), 3u);
  EXPECT_FALSE(q.arrive({1, 0}, 8)) << "another tag";
  EXPECT_EQ(q.arrive({2, 0}, 7), 11u) << "the only one that takes any";
  EXPECT_EQ(q.arrive({1, 1}, 7), 10u);
  EXPECT_EQ(q.arrive({1, 2}, 7), 12u);
  EXPECT_FALSE(q.arrive({1, 3}, 7));
  EXPECT_EQ(q.waiting(), 0u);
  EXPECT_EQ(q.unclaimed(), 2u);
  EXPECT_TRUE(q.awaited().empty());
}

TEST(MatchQueue, ReceiveTakesTheOldestMessage) {
  MatchQueue q;
  EXPECT_FALSE(q.arrive({3, 0}, 7));
  EXPECT_FALSE(q.arrive({1, 0}, 7));
  EXPECT_FALSE(q.arrive({1, 1}, 6));
  EXPECT_FALSE(q.arrive({1, 2}, 7));
  EXPECT_EQ(q.post(10, 1, 7), (Sent{1, 0}));
  EXPECT_EQ(q.post(11, kAnyOne, 7), (Sent{3, 0})) << "the older of the two that are left";
  EXPECT_FALSE(q.post(12, 3, 7));
  EXPECT_EQ(q.post(13, kAnyOne, 7), (Sent{1, 2}));
  EXPECT_FALSE(q.post(14, kAnyOne, 7));
  EXPECT_EQ(q.post(15, kAnyOne, 6), (Sent{1, 1}));
  EXPECT_EQ(q.unclaimed(), 0u);
}

TEST(MatchQueue, AnySourceAndNamedReceivesMatchInPostOrder) {
  MatchQueue q;
  EXPECT_FALSE(q.post(10, kAnyOne, 0));
  EXPECT_FALSE(q.post(11, 1, 0));
  EXPECT_EQ(q.arrive({1, 0}, 0), 10u);
  EXPECT_EQ(q.arrive({1, 1}, 0), 11u);
  EXPECT_FALSE(q.post(12, 1, 0));
  EXPECT_FALSE(q.post(13, kAnyOne, 0));
  EXPECT_EQ(q.arrive({1, 2}, 0), 12u);
  EXPECT_EQ(q.arrive({1, 3}, 0), 13u);
}

TEST(MatchQueue, WithdrawnReceiveTakesNothing) {
  MatchQueue q;
  EXPECT_FALSE(q.post(10, 1, 0));
  EXPECT_FALSE(q.post(11, 1, 0));
  EXPECT_FALSE(q.post(12, kAnyOne, 0));
  EXPECT_TRUE(q.withdraw(10));
  EXPECT_FALSE(q.withdraw(10));
  EXPECT_TRUE(q.withdraw(12));
  EXPECT_EQ(q.arrive({1, 0}, 0), 11u);
  EXPECT_FALSE(q.withdraw(11)) << "it has taken one";
  EXPECT_FALSE(q.arrive({1, 1}, 0));
  EXPECT_FALSE(q.awaits(1));
  EXPECT_EQ(q.waiting(), 0u);
}

// Compares it with a model that checks everything in order.
TEST(MatchQueue, EqualsAListModel) {
  struct Receive {
    uint64_t id;
    Member source;
    uint32_t tag;
  };
  struct Arrived {
    Sent message;
    uint32_t tag;
  };
  for (uint64_t seed = 1; seed <= 200; seed++) {
    Rng rng(seed);
    MatchQueue q;
    std::vector<Receive> receives;
    std::vector<Arrived> messages;
    std::vector<uint32_t> numbers(4);
    const auto takes = [](const Receive& r, const Arrived& a) {
      return r.tag == a.tag && (r.source == kAnyOne || r.source == a.message.source);
    };
    for (uint64_t id = 0; id < 300; id++) {
      const auto tag = static_cast<uint32_t>(rng.below(3));
      if (rng.chance(0.1) && !receives.empty()) {
        const auto at = receives.begin() + static_cast<long>(rng.below(receives.size()));
        ASSERT_TRUE(q.withdraw(at->id));
        receives.erase(at);
      } else if (rng.chance(0.5)) {
        const auto source = static_cast<Member>(rng.below(4));
        const Arrived a{{source, numbers[source]++}, tag};
        const auto r = std::find_if(receives.begin(), receives.end(),
                                    [&](const Receive& x) { return takes(x, a); });
        const auto taken = q.arrive(a.message, tag);
        ASSERT_EQ(taken.has_value(), r != receives.end()) << seed;
        if (!taken) {
          messages.push_back(a);
          continue;
        }
        ASSERT_EQ(*taken, r->id) << seed;
        receives.erase(r);
      } else {
        const Receive r{id, rng.chance(0.3) ? kAnyOne : static_cast<Member>(rng.below(4)), tag};
        const auto a = std::find_if(messages.begin(), messages.end(),
                                    [&](const Arrived& x) { return takes(r, x); });
        const auto taken = q.post(r.id, r.source, tag);
        ASSERT_EQ(taken.has_value(), a != messages.end()) << seed;
        if (!taken) {
          receives.push_back(r);
          continue;
        }
        ASSERT_EQ(*taken, a->message) << seed;
        messages.erase(a);
      }
      ASSERT_EQ(q.waiting(), receives.size());
      ASSERT_EQ(q.unclaimed(), messages.size());
      for (Member m = 0; m < 4; m++) {
        ASSERT_EQ(q.awaits(m), std::any_of(receives.begin(), receives.end(),
                                           [&](const Receive& x) { return x.source == m; }));
      }
    }
  }
}

}  // namespace
}  // namespace mcast::test
