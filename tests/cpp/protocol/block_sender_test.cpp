// BlockSender: window, credit, repetition, and how the window adapts to the path.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "base/rng.h"
#include "protocol/announce.h"
#include "protocol/block_sender.h"
#include "support/seeds.h"

namespace mcast {
namespace {

SenderParams sender(Chunk chunks, Chunk eager, Chunk window, Chunk batch = 4, Chunk quantum = 2) {
  SenderParams p;
  p.chunks = chunks;
  p.eager = eager;
  p.window = window;
  p.batch = batch;
  p.quantum = quantum;
  return p;
}

ChunkRange take(BlockSender& s, Chunk max = 1000, Nanos now = 0, bool expect_again = false) {
  bool again = false;
  const ChunkRange r = s.take(max, again, now);
  if (r.size() > 0) {
    EXPECT_EQ(again, expect_again);
  }
  return r;
}

TEST(BlockSender, SendsItsEagerPartThenWhatCreditAndWindowAllow) {
  BlockSender s(sender(100, 10, 20));
  EXPECT_EQ(take(s), (ChunkRange{0, 10}));
  EXPECT_FALSE(s.can_send());
  EXPECT_EQ(take(s).size(), 0u);
  EXPECT_FALSE(s.has_credit());
  s.on_credit(0, 15, 0, 1);
  EXPECT_EQ(take(s), (ChunkRange{10, 15}));  // the receivers' limit
  s.on_credit(15, 100, 0, 2);
  EXPECT_EQ(take(s), (ChunkRange{15, 35}));  // this member's own window
}

TEST(BlockSender, WithoutEagerNothingLeavesBeforeCredit) {
  BlockSender s(sender(5, 0, 20));
  EXPECT_FALSE(s.can_send());
  EXPECT_EQ(s.deadline(), kNever);
  s.on_credit(0, 3, 0, 1);
  EXPECT_EQ(take(s), (ChunkRange{0, 3}));
}

TEST(BlockSender, CreditNeverGoesBack) {
  BlockSender s(sender(100, 0, 20));
  s.on_credit(10, 30, 0, 1);
  const Chunk end = s.allowed_end();
  s.on_credit(5, 7, 0, 2);
  EXPECT_EQ(s.allowed_end(), end);
  EXPECT_EQ(s.high_water(), 10u);
}

// Receivers share their sockets with other groups first, and with fewer of them later.
TEST(BlockSender, LatestLimitAppliesEvenIfItIsLower) {
  BlockSender s(sender(100, 0, 50));
  s.on_credit(0, 40, 0, 1);
  EXPECT_EQ(take(s, 10), (ChunkRange{0, 10}));
  s.on_credit(0, 20, 0, 2);
  EXPECT_EQ(take(s), (ChunkRange{10, 20}));
  s.on_credit(10, 15, 0, 3);  // less than has been sent
  EXPECT_FALSE(s.can_send());
  EXPECT_EQ(s.sent(), 20u);
  s.on_credit(20, 60, 0, 4);
  EXPECT_EQ(take(s), (ChunkRange{20, 60}));
}

TEST(BlockSender, PutBackIsSentNextTime) {
  BlockSender s(sender(10, 10, 20));
  EXPECT_EQ(take(s, 6), (ChunkRange{0, 6}));
  s.put_back({2, 6}, false);
  EXPECT_EQ(s.sent(), 2u);
  EXPECT_EQ(take(s), (ChunkRange{2, 10}));
}

TEST(BlockSender, RepairsGoFirstAndNeverBeyondWhatWasSent) {
  BlockSender s(sender(10, 10, 20));
  EXPECT_EQ(take(s, 5), (ChunkRange{0, 5}));
  s.resend({3, 9});
  EXPECT_EQ(take(s, 1, 0, true), (ChunkRange{3, 4}));
  s.put_back({3, 4}, true);
  EXPECT_EQ(take(s, 10, 0, true), (ChunkRange{3, 5}));
  EXPECT_EQ(take(s), (ChunkRange{5, 10}));
}

TEST(BlockSender, ChunksAlreadyWaitingToBeRepeatedAreNotQueuedTwice) {
  BlockSender s(sender(100, 100, 20));
  EXPECT_EQ(take(s), (ChunkRange{0, 100}));
  s.resend({10, 20});
  s.resend({15, 25});
  s.resend({5, 30});
  Chunk total = 0;
  while (s.can_send()) total += take(s, 7, 0, true).size();
  EXPECT_EQ(total, 25u);
}

TEST(BlockSender, RandomRepetitionsAgainstAModel) {
  for (const uint64_t seed : test::seeds(100)) {
    Rng rng(seed);
    BlockSender s(sender(200, 200, 20));
    EXPECT_EQ(take(s), (ChunkRange{0, 200}));
    std::set<Chunk> waiting;
    for (int step = 0; step < 300; step++) {
      const auto first = static_cast<Chunk>(rng.below(200));
      const auto length = static_cast<Chunk>(rng.below(30));
      if (rng.below(2) == 0) {
        s.resend({first, first + length});
        for (Chunk c = first; c < std::min<Chunk>(200, first + length); c++) waiting.insert(c);
      } else if (s.can_send()) {
        const ChunkRange run = take(s, 1 + length, 0, true);
        ASSERT_EQ(run.first, *waiting.begin()) << "MCAST_TEST_SEED=" << seed;
        const auto back = static_cast<Chunk>(rng.below(run.size() + 1));
        s.put_back({run.end - back, run.end}, true);
        for (Chunk c = run.first; c < run.end - back; c++) ASSERT_EQ(waiting.erase(c), 1u);
      }
      ASSERT_EQ(s.resending(), !waiting.empty()) << "MCAST_TEST_SEED=" << seed;
    }
  }
}

TEST(BlockSender, PositionsBackOffThenOneByStream) {
  const SenderParams p = sender(3, 3, 20);
  BlockSender s(p);
  EXPECT_EQ(s.deadline(), kNever);
  take(s, 10, 1000);
  EXPECT_EQ(s.position_due(1000), Announce::kNo);
  EXPECT_EQ(s.deadline(), 1000 + p.position_delay);
  Nanos at = s.deadline(), gap = 0;
  for (int i = 0; i < p.position_multicasts; i++) {
    ASSERT_NE(at, kNever);
    EXPECT_EQ(s.position_due(at), Announce::kMulticast);
    if (i + 1 < p.position_multicasts) {
      EXPECT_GE(s.deadline() - at, gap);
      gap = s.deadline() - at;
    }
    at = s.deadline();
  }
  // A receiver has not posted yet and would forget it, so nothing is announced until all have.
  EXPECT_EQ(s.deadline(), kNever);
  EXPECT_EQ(s.position_due(kSecond), Announce::kNo);
  s.on_credit(1, 3, 0, kSecond);
  at = s.deadline();
  ASSERT_NE(at, kNever);
  EXPECT_EQ(s.position_due(at), Announce::kStream);
  EXPECT_EQ(s.deadline(), kNever) << "a stream is reliable: once is enough";
  EXPECT_EQ(s.position_due(kSecond * 60), Announce::kNo);
}

TEST(BlockSender, SilentOnceAllMarksHaveReachedTheEnd) {
  BlockSender s(sender(3, 3, 20));
  take(s, 10, 1000);
  s.on_credit(3, 3, 0, 2000);
  EXPECT_TRUE(s.all_sent());
  EXPECT_EQ(s.deadline(), kNever);
  EXPECT_EQ(s.position_due(kSecond), Announce::kNo);
}

TEST(BlockSender, NoPositionIsDueIfReceiversReportedAllThatWasSent) {
  BlockSender s(sender(100, 4, 4));
  take(s);
  s.on_credit(4, 4, 0, 1);  // all received, no credit to continue
  EXPECT_FALSE(s.can_send());
  EXPECT_EQ(s.deadline(), kNever);
  EXPECT_EQ(s.position_due(kSecond), Announce::kNo);
}

// Successive windows lose their tail; each announcement waits as long as the first.
TEST(BlockSender, PositionInducedCreditDoesNotDelayNextPosition) {
  const SenderParams p = sender(1000, 0, 4, 1, 1);
  BlockSender s(p);
  s.on_credit(0, p.chunks, 0, 0);
  Nanos now = 0;
  while (!s.all_sent()) {
    take(s, 4, now);
    ASSERT_EQ(s.deadline(), now + p.position_delay) << "after " << s.sent();
    now = s.deadline();
    ASSERT_EQ(s.position_due(now), Announce::kMulticast);
    now += 100 * kMicro;
    s.on_credit(s.sent(), p.chunks, 0, now);
  }
}

// A link on which a receiver's report takes 5 ms: every report arrives after an announcement at
// first, but soon no announcement is made needlessly.
TEST(BlockSender, PositionDelayAdaptsToASlowLink) {
  const SenderParams p = sender(1000, 0, 8, 1, 2);
  BlockSender s(p);
  s.on_credit(0, p.chunks, 0, 0);
  int announced = 0;
  Chunk mark = 0;
  for (Nanos now = 0; mark + 8 < p.chunks; now += 5 * kMilli) {
    take(s, 8, now);
    for (; s.deadline() < now + 5 * kMilli; announced++) {
      ASSERT_NE(s.position_due(s.deadline()), Announce::kNo);
    }
    mark += 2;
    s.on_credit(mark, p.chunks, 0, now + 5 * kMilli);
  }
  EXPECT_LE(announced, 6);
}

// A stream that loses half of its chunks: whatever the cuts, it makes progress, since receivers
// report after a quantum and the window stays above it.
TEST(BlockSender, WindowNeverFallsBelowTheReportQuantum) {
  const SenderParams p = sender(1'000'000, 0, 800, 10, 200);
  BlockSender s(p);
  Chunk mark = 0, reported = 0;
  uint32_t lost = 0;
  s.on_credit(0, p.chunks, 0, 0);
  for (int turn = 0; turn < 5000; turn++) {
    const ChunkRange run = take(s);
    mark = std::max(mark, run.end);
    lost += run.size() / 2;
    ASSERT_GE(s.window(), p.quantum);
    ASSERT_TRUE(s.all_sent() || mark - reported >= p.quantum)
        << "nothing to report: the stream stands still";
    reported = mark;
    s.on_credit(mark, p.chunks, lost, turn);
    if (s.all_sent()) break;
  }
  EXPECT_TRUE(s.all_sent());
  EXPECT_GT(s.cuts(), 5u);
}

// A link of `rate` chunks per ns with a round trip of `trip` and a queue. Returns the maximum
// number of chunks in flight.
Chunk widest_on_link(double rate, Nanos trip, Chunk window, Chunk widest) {
  SenderParams p = sender(2'000'000, 0, window, window / 16, window / 4);
  p.widest = widest;
  BlockSender s(p);
  s.on_credit(0, p.chunks, 0, 1);
  struct Report {
    Nanos at;
    Chunk mark;
  };
  std::deque<Report> coming;
  Nanos now = 1, link_free = 1;
  Chunk reported = 0, mark = 0, most = 0;
  while (!s.all_sent()) {
    const ChunkRange run = take(s, p.batch, now);
    if (run.size() == 0) {
      if (coming.empty()) break;
      now = std::max(now, coming.front().at);
      mark = coming.front().mark;
      coming.pop_front();
      s.on_credit(mark, p.chunks, 0, now);
      continue;
    }
    link_free = std::max(link_free, now) + static_cast<Nanos>(run.size() / rate);
    if (run.end - reported >= p.quantum || run.end == p.chunks) {
      coming.push_back({link_free + trip, run.end});
      reported = run.end;
    }
    most = std::max(most, run.end - mark);
  }
  EXPECT_TRUE(s.all_sent());
  return most;
}

TEST(BlockSender, WindowCoversPathAndQueue) {
  // 1 chunk per us. A short path holds little, and the window stays at the amount that may wait in
  // a queue.
  EXPECT_LE(widest_on_link(1e-3, 20 * kMicro, 1600, 100'000), 1600u + 600u);
  // A long path holds 20,000 chunks: the window grows to that size, and the queue does not.
  const Chunk most = widest_on_link(1e-3, 20 * kMilli, 1600, 100'000);
  EXPECT_GE(most, 20'000u);
  EXPECT_LE(most, 20'000u + 3 * 1600u);
  // Never more than the receivers can queue.
  EXPECT_LE(widest_on_link(1e-3, 20 * kMilli, 1600, 5000), 5000u);
}

TEST(BlockSender, StreamStartsWithTheEarlierMeasurement) {
  SenderParams p = sender(100'000, 0, 100);
  p.widest = 1000;
  p.on_the_way = 300;
  EXPECT_EQ(BlockSender(p).window(), 400u);
  p.on_the_way = 5000;
  EXPECT_EQ(BlockSender(p).window(), 1000u);
  p.widest = 0;
  EXPECT_EQ(BlockSender(p).window(), 100u);
}

TEST(BlockSender, ThinLossDoesNotCut) {
  BlockSender s(sender(100'000, 0, 800, 10, 200));
  s.on_credit(0, 100'000, 0, 0);
  for (uint32_t lost = 0; !s.all_sent(); lost += 8) {
    take(s);
    s.on_credit(s.sent(), 100'000, lost, 1);
  }
  EXPECT_EQ(s.cuts(), 0u);
  EXPECT_EQ(s.window(), 800u);
}

TEST(BlockSender, NearlyTwoToThe32ChunksAreSentInOrder) {
  constexpr Chunk kMany = 0xffffffffu;
  BlockSender s(sender(kMany, 0, 800, 10, 200));
  s.on_credit(kMany - 100, kMany, 0, 0);
  Chunk at = 0;
  while (!s.all_sent()) {
    const ChunkRange r = take(s, 0x40000000u);
    ASSERT_EQ(r.first, at);
    ASSERT_GT(r.end, r.first);
    at = r.end;
  }
  EXPECT_EQ(at, kMany);
  s.resend({kMany - 5, kMany});
  EXPECT_EQ(take(s, 46, 0, true), (ChunkRange{kMany - 5, kMany}));
  EXPECT_FALSE(s.can_send());
}

}  // namespace
}  // namespace mcast
