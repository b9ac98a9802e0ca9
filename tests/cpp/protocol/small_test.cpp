// Small operations over the operations: how far roots may run ahead (EagerWindow), what they say
// (SentAnnouncer), what receivers make of it (SentTracker) and keep of it (Staging).
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "protocol/eager_window.h"
#include "protocol/sent_announcer.h"
#include "protocol/sent_tracker.h"
#include "protocol/staging.h"
#include "support/seeds.h"

namespace mcast {
namespace {

TEST(EagerWindow, HoldsWhatIsNotReleasedBelowTheLimit) {
  EagerWindow w(100);
  for (int i = 0; i < 5; i++) w.on_post(40);
  EXPECT_TRUE(w.open(0));
  EXPECT_TRUE(w.open(1));
  EXPECT_FALSE(w.open(2));
  EXPECT_TRUE(w.filling());
  w.on_released(1);
  EXPECT_TRUE(w.open(2));
  EXPECT_FALSE(w.open(3));
  w.on_released(4);
  EXPECT_TRUE(w.open(4));
  EXPECT_FALSE(w.filling());
}

TEST(EagerWindow, OneOperationAlwaysFits) {
  EagerWindow w(0);
  w.on_post(1000);
  w.on_post(1000);
  EXPECT_TRUE(w.open(0));
  EXPECT_FALSE(w.open(1));
  w.on_released(1);
  EXPECT_TRUE(w.open(1));
}

TEST(EagerWindow, WhatIsNotSentAheadCostsNothing) {
  EagerWindow w(10);
  for (int i = 0; i < 100; i++) w.on_post(0);
  EXPECT_TRUE(w.open(99));
}

// Ranks that post at different times, roots that know of releases at different times: what the
// receiver that is furthest behind must keep never passes the limit (but for a single operation).
TEST(EagerWindow, NoReceiverIsSentMoreThanTheLimit) {
  for (const uint64_t seed : test::seeds(200)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const size_t limit = 200 + rng.below(5000), ranks = 2 + rng.below(4), ops = 60;
    struct Op {
      size_t root, bytes;
    };
    std::vector<Op> calls(ops);
    for (Op& op : calls) op = {rng.below(ranks), 1 + rng.below(300)};
    struct Rank {
      EagerWindow window;
      size_t posted = 0, released = 0, sent = 0;  // sent: looked at for sending, in order
      size_t staged = 0;
    };
    std::vector<Rank> all;
    for (size_t r = 0; r < ranks; r++) all.push_back({EagerWindow(limit)});
    std::vector<bool> on_wire(ops);
    for (int turn = 0; turn < 4000; turn++) {
      Rank& me = all[rng.below(ranks)];
      const auto who = static_cast<size_t>(&me - all.data());
      if (me.posted < ops && rng.chance(0.6)) {
        me.window.on_post(EagerWindow::cost(1, calls[me.posted++].bytes));
      }
      while (me.sent < me.posted &&
             (calls[me.sent].root != who || me.window.open(static_cast<Sequence>(me.sent)))) {
        if (calls[me.sent].root == who) on_wire[me.sent] = true;
        me.sent++;
      }
      // Complete everywhere: posted by all, and sent. A rank may learn of it late.
      size_t everywhere = 0;
      while (everywhere < ops && on_wire[everywhere] &&
             std::all_of(all.begin(), all.end(),
                         [&](const Rank& r) { return r.posted > everywhere; })) {
        everywhere++;
      }
      me.released += rng.below(everywhere - me.released + 1);
      me.window.on_released(static_cast<Sequence>(me.released));
      for (const Rank& late : all) {
        size_t ahead = 0, count = 0;
        for (size_t s = late.posted; s < ops; s++) {
          if (!on_wire[s] || calls[s].root == static_cast<size_t>(&late - all.data())) continue;
          ahead += EagerWindow::cost(1, calls[s].bytes);
          count++;
        }
        ASSERT_TRUE(ahead <= limit || count == 1) << "seed " << seed;
      }
    }
  }
}

TEST(SentAnnouncer, AFewTimesThenOnceByStreamThenSilence) {
  SentAnnouncer a;
  EXPECT_EQ(a.deadline(), kNever);
  a.on_sent(5, 0);
  EXPECT_EQ(a.due(0), Announce::kNo);
  for (int i = 0; i < SentAnnouncer::kMulticasts; i++) {
    EXPECT_EQ(a.due(a.deadline() - 1), Announce::kNo);
    EXPECT_EQ(a.due(a.deadline()), Announce::kMulticast);
  }
  EXPECT_EQ(a.due(a.deadline()), Announce::kStream);
  EXPECT_EQ(a.deadline(), kNever);
  EXPECT_EQ(a.due(3600 * kSecond), Announce::kNo);
  a.on_sent(6, 3600 * kSecond);
  EXPECT_EQ(a.due(a.deadline()), Announce::kMulticast);
  a.on_released(6);
  EXPECT_EQ(a.deadline(), kNever);
}

TEST(SentAnnouncer, SilentWhileItSends) {
  SentAnnouncer a;
  for (Sequence s = 1; s < 1000; s++) {
    a.on_sent(s, s * kMilli / 2);
    EXPECT_EQ(a.due(s * kMilli / 2 + kMilli / 4), Announce::kNo);
  }
}

TEST(SentTracker, AsksOnceForWhatIsRipeAndNotPosted) {
  SentTracker t(3, kMilli);
  std::vector<SentTracker::Ask> asks;
  EXPECT_EQ(t.on_sent(1, 10, 3, 0), 0u);
  EXPECT_EQ(t.on_sent(1, 8, 3, 0), 10u);
  EXPECT_EQ(t.sent(1), 10u);
  t.due(3, kMilli - 1, asks);
  EXPECT_TRUE(asks.empty());
  t.on_sent(1, 20, 3, kMilli - 1);
  t.due(3, kMilli, asks);
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].root, 1);
  EXPECT_EQ(asks[0].first, 3u);
  EXPECT_EQ(asks[0].end, 10u) << "what came meanwhile may be on its way";
  EXPECT_TRUE(t.asked(1, 9));
  EXPECT_FALSE(t.asked(1, 10));
  t.due(3, t.deadline(), asks);
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].first, 10u);
  EXPECT_EQ(asks[0].end, 20u);
  EXPECT_EQ(t.deadline(), kNever);
}

TEST(SentTracker, NothingIsAskedForThatHasBeenPosted) {
  SentTracker t(2, kMilli);
  std::vector<SentTracker::Ask> asks;
  t.on_sent(0, 10, 10, 0);
  EXPECT_EQ(t.deadline(), kNever) << "no timer for what has been posted";
  t.on_sent(0, 12, 10, 0);
  t.due(12, kMilli, asks);
  EXPECT_TRUE(asks.empty());
  EXPECT_EQ(t.deadline(), kNever);
}

TEST(SentTracker, ABusyRootIsAskedAllTheSame) {
  SentTracker t(2, kMilli);
  std::vector<SentTracker::Ask> asks;
  Sequence asked = 0;
  for (Sequence s = 1; s <= 1000; s++) {
    t.on_sent(0, s, 0, s * 100 * kMicro);
    t.due(0, s * 100 * kMicro, asks);
    for (const auto& a : asks) {
      EXPECT_EQ(a.first, asked);
      asked = a.end;
    }
  }
  EXPECT_GT(asked, 900u);
}

TEST(Staging, KeepsUntilTakenInOrderAndBounded) {
  Staging s(1000);
  const std::vector<std::byte> a(100, std::byte{1}), b(100, std::byte{2}), big(900);
  EXPECT_EQ(s.put(7, {1, 4}, 99, true, a), Staging::Put::kStored);
  EXPECT_EQ(s.put(7, {1, 2}, 99, true, b), Staging::Put::kStored);
  EXPECT_EQ(s.put(7, {1, 4}, 99, true, b), Staging::Put::kDuplicate);
  EXPECT_EQ(s.put(8, {0, 0}, 98, true, big), Staging::Put::kFull);
  EXPECT_LE(s.bytes(), 1000u);
  EXPECT_TRUE(s.holds(7, 1));
  EXPECT_FALSE(s.holds(7, 0));
  EXPECT_FALSE(s.holds(7, 2));
  EXPECT_FALSE(s.holds(8, 0));
  EXPECT_TRUE(s.take(8).empty());
  const auto taken = s.take(7);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken.begin()->first.chunk, 2u);
  EXPECT_EQ(taken.begin()->second.payload, b);
  EXPECT_EQ(taken.rbegin()->second.payload, a) << "the first copy stays";
  EXPECT_EQ(taken.rbegin()->second.descriptor, 99u);
  EXPECT_EQ(s.bytes(), 0u);
  EXPECT_EQ(s.put(8, {0, 0}, 98, true, big), Staging::Put::kStored);
}

TEST(Staging, EmptyPayloadsCostToo) {
  Staging s(10000);
  uint32_t stored = 0;
  for (Chunk c = 0; c < 100000; c++)
    stored += s.put(0, {0, c}, 0, true, {}) == Staging::Put::kStored;
  EXPECT_LE(stored, 10000u / 64);
  EXPECT_EQ(Staging(0).put(0, {0, 0}, 0, true, {}), Staging::Put::kFull);
}

}  // namespace
}  // namespace mcast
