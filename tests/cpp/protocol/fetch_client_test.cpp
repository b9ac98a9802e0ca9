// FetchClient: the donor of each request, and the time of the next one.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "protocol/fetch_client.h"
#include "support/seeds.h"

namespace mcast {
namespace {

using Ranges = std::vector<ChunkRange>;

const FetchClient::Has kNothing = [](Member, Chunk) { return false; };

const std::vector<Nanos> kSilent(16);  // by member: nothing received

FetchParams params(Member self = 1, uint32_t members = 4) {
  FetchParams p;
  p.self = self;
  p.members = members;
  return p;
}

FetchClient::Request ask(FetchClient& f, Nanos now = 0, const FetchClient::Has& has = kNothing) {
  FetchClient::Request r;
  EXPECT_TRUE(f.next(now, has, r));
  return r;
}
bool silent(FetchClient& f, Nanos now = 0) {
  FetchClient::Request r;
  return !f.next(now, kNothing, r);
}

TEST(FetchClient, AsksTheRingNeighbourFirst) {
  FetchClient f(params(1));
  EXPECT_TRUE(f.idle());
  f.want(0, {5, 8});
  const auto r = ask(f);
  EXPECT_EQ(r.donor, 2);
  EXPECT_EQ(r.root, 0);
  EXPECT_EQ(r.ranges, (Ranges{{5, 8}}));
  EXPECT_TRUE(silent(f));
  EXPECT_TRUE(f.on_data(r.id, 2, 0, {5, 8}, 10));
  EXPECT_TRUE(f.idle());
}

TEST(FetchClient, TheLastRanksNeighbourIsTheFirst) {
  FetchClient f(params(3));
  f.want(1, {0, 1});
  EXPECT_EQ(ask(f).donor, 0);
}

TEST(FetchClient, TwoRanksAskEachOther) {
  FetchClient f(params(1, 2));
  f.want(0, {0, 4});
  EXPECT_EQ(ask(f).donor, 0);
}

TEST(FetchClient, SmallOpsAskTheRootOnly) {
  FetchParams p = params(1);
  p.ask_root_only = true;
  FetchClient f(p);
  f.want(3, {0, 1});
  EXPECT_EQ(ask(f).donor, 3);
}

TEST(FetchClient, NotHaveGoesToTheRootAtOnce) {
  FetchClient f(params(1));
  f.want(0, {0, 10});
  const auto first = ask(f);
  const Ranges missing = {{2, 4}};
  EXPECT_TRUE(f.on_not_have(first.id, 2, 0, missing, false, 5));
  const auto second = ask(f, 5);
  EXPECT_EQ(second.donor, 0);
  EXPECT_EQ(second.ranges, missing);
  // The rest of the first request is still open.
  EXPECT_EQ(f.outstanding(), 2u);
  EXPECT_TRUE(f.on_data(first.id, 2, 0, {0, 2}, 6));
  EXPECT_EQ(f.outstanding(), 2u);
  EXPECT_TRUE(f.on_data(first.id, 2, 0, {4, 10}, 6));
  EXPECT_TRUE(f.on_data(second.id, 0, 0, {2, 4}, 7));
  EXPECT_TRUE(f.idle());
}

TEST(FetchClient, ARootWithoutTheChunkIsAskedAgainLater) {
  FetchParams p = params(1);
  p.ask_root_only = true;
  FetchClient f(p);
  f.want(0, {0, 1});
  Nanos now = 0, wait = 0;
  for (int i = 0; i < 6; i++) {
    const auto r = ask(f, now);
    f.on_not_have(r.id, 0, 0, r.ranges, false, now);
    EXPECT_TRUE(silent(f, now));
    EXPECT_GT(f.deadline() - now, wait) << "waits longer each time";
    wait = f.deadline() - now;
    now = f.deadline();
  }
}

TEST(FetchClient, WaitsForRepeatedMulticastThenRequestsAgain) {
  FetchClient f(params(1));
  f.want(0, {3, 4});
  const auto a = ask(f);
  f.on_not_have(a.id, 2, 0, a.ranges, true, 0);
  EXPECT_TRUE(silent(f, 0));
  EXPECT_EQ(f.deadline(), params().coming_wait);
  EXPECT_EQ(ask(f, f.deadline()).donor, 0);
}

TEST(FetchClient, AnUnansweredRequestGoesToTheRootWithBackOff) {
  FetchClient f(params(1));
  f.want(0, {0, 2});
  (void)ask(f);
  Nanos now = 0, before = 0;
  for (int i = 0; i < 8; i++) {
    const Nanos due = f.deadline();
    EXPECT_GE(due - now, before);
    EXPECT_LE(due - now, params().timeout_max);
    EXPECT_EQ(f.expire(due - 1, kSilent), 0u);
    EXPECT_EQ(f.expire(due, kSilent), 1u);
    before = due - now;
    now = due;
    EXPECT_EQ(ask(f, now).donor, 0);
  }
}

// A donor that is still sending has not reached our request yet: a second request to the root would
// only add load.
TEST(FetchClient, ADonorThatIsStillSendingIsWaitedFor) {
  FetchClient f(params(1));
  f.want(0, {0, 2});
  (void)ask(f);
  std::vector<Nanos> heard = kSilent;
  Nanos due = f.deadline();
  for (int i = 0; i < 5; i++) {
    heard[2] = due - kMilli;
    EXPECT_EQ(f.expire(due, heard), 0u);
    EXPECT_GT(f.deadline(), due) << "a deadline that has passed would make the lane spin";
    EXPECT_EQ(f.deadline(), heard[2] + params().timeout_min);
    due = f.deadline();
  }
  EXPECT_EQ(f.expire(due, heard), 1u) << "silent since";
  // A donor that was received from before the request has not replied to it.
  (void)ask(f, due);
  heard[0] = due;
  EXPECT_EQ(f.expire(f.deadline(), heard), 1u);
}

TEST(FetchClient, LateAnswersAreUnknown) {
  FetchClient f(params(1));
  f.want(0, {0, 2});
  const auto r = ask(f);
  f.expire(f.deadline(), kSilent);
  EXPECT_FALSE(f.on_data(r.id, 2, 0, {0, 2}, kSecond));
  EXPECT_FALSE(f.on_data(12345, 2, 0, {0, 2}, kSecond));
  EXPECT_FALSE(f.on_not_have(12345, 2, 0, r.ranges, false, kSecond));
  EXPECT_EQ(f.outstanding(), 0u);
}

// A false or mistaken reply must not settle a request: its chunks would never be requested again.
TEST(FetchClient, OnlyTheDonorSettlesRequestedChunks) {
  FetchClient f(params(1));
  f.want(0, {5, 8});
  const auto r = ask(f);
  const Ranges asked = {{5, 8}};
  EXPECT_FALSE(f.on_data(r.id, 3, 0, {5, 8}, 1)) << "another rank";
  EXPECT_FALSE(f.on_data(r.id, 2, 3, {5, 8}, 1)) << "another stream";
  EXPECT_FALSE(f.on_data(r.id, 2, 0, {0, 5}, 1)) << "chunks that were not asked for";
  EXPECT_FALSE(f.on_not_have(r.id, 3, 0, asked, false, 1)) << "another rank";
  EXPECT_FALSE(f.on_not_have(r.id, 2, 0, Ranges{{8, 20}}, false, 1)) << "not asked for";
  EXPECT_EQ(f.outstanding(), 1u);
  EXPECT_TRUE(f.on_data(r.id, 2, 0, {4, 6}, 2));
  EXPECT_FALSE(f.on_data(r.id, 2, 0, {4, 6}, 3)) << "the same again";
  EXPECT_FALSE(f.idle());
  EXPECT_TRUE(f.on_not_have(r.id, 2, 0, Ranges{{0, 100}}, false, 4)) << "beyond what is open";
  EXPECT_EQ(ask(f, 4).ranges, (Ranges{{6, 8}}));
}

TEST(FetchClient, ArrivedChunksAreNotRequested) {
  FetchClient f(params(1));
  f.want(0, {0, 10});
  const auto has = [](Member, Chunk c) { return c != 3 && c != 4 && c != 9; };
  EXPECT_EQ(ask(f, 0, has).ranges, (Ranges{{3, 5}, {9, 10}}));
  f.want(0, {20, 30});
  FetchClient::Request r;
  EXPECT_FALSE(f.next(
      0, [](Member, Chunk) { return true; }, r));
}

TEST(FetchClient, RequestsAreBoundedInChunksRangesAndNumber) {
  FetchParams p = params(1);
  p.max_chunks = 8;
  p.max_ranges = 3;
  p.max_outstanding = 2;
  FetchClient f(p);
  f.want(0, {0, 20});
  for (Chunk c = 100; c < 120; c += 2) f.want(0, {c, c + 1});
  std::set<Chunk> asked;
  std::vector<FetchClient::Request> open;
  while (true) {
    FetchClient::Request r;
    while (f.next(0, kNothing, r)) {
      Chunk total = 0;
      for (const ChunkRange& range : r.ranges) {
        total += range.size();
        for (Chunk c = range.first; c < range.end; c++) EXPECT_TRUE(asked.insert(c).second) << c;
      }
      EXPECT_LE(total, 8u);
      EXPECT_LE(r.ranges.size(), 3u);
      open.push_back(r);
    }
    EXPECT_LE(f.outstanding(), 2u);
    if (open.empty()) break;
    const FetchClient::Request& last = open.back();
    for (const ChunkRange& range : last.ranges) f.on_data(last.id, last.donor, 0, range, 1);
    open.pop_back();
  }
  EXPECT_EQ(asked.size(), 30u);
  EXPECT_TRUE(f.idle());
}

TEST(FetchClient, OneRequestHasOneRootAndOneDonor) {
  FetchClient f(params(1));
  f.want(0, {0, 1});
  f.want(3, {0, 1});
  f.want(0, {5, 6});
  const auto a = ask(f), b = ask(f);
  EXPECT_EQ(a.root, 0);
  EXPECT_EQ(a.ranges, (Ranges{{0, 1}, {5, 6}}));
  EXPECT_EQ(b.root, 3);
}

// Any sequence of replies, partial replies, refusals and losses: every wanted chunk is requested
// until it has arrived, and then the client is idle.
TEST(FetchClient, RandomConversationsEnd) {
  for (const uint64_t seed : test::seeds(300)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    FetchParams p = params(1, 2 + static_cast<uint32_t>(rng.below(4)));
    p.max_chunks = 1 + static_cast<Chunk>(rng.below(16));
    FetchClient f(p);
    std::set<std::pair<Member, Chunk>> missing;
    for (int i = 0; i < 20; i++) {
      const auto root = static_cast<Member>(rng.below(p.members));
      if (root == p.self) continue;
      const auto first = static_cast<Chunk>(i * 50),
                 end = first + 1 + static_cast<Chunk>(rng.below(40));
      f.want(root, {first, end});
      for (Chunk c = first; c < end; c++) missing.insert({root, c});
    }
    const FetchClient::Has has = [&](Member m, Chunk c) { return missing.count({m, c}) == 0; };
    std::vector<FetchClient::Request> open;
    Nanos now = 0;
    for (int turn = 0; turn < 20000 && !f.idle(); turn++) {
      f.expire(now, kSilent);
      FetchClient::Request r;
      while (f.next(now, has, r)) open.push_back(r);
      if (f.idle()) break;
      if (open.empty() || rng.chance(0.1)) {
        ASSERT_NE(f.deadline(), kNever) << "seed " << seed << ": stuck";
        now = std::max(now + 1, f.deadline());
        continue;
      }
      const size_t i = rng.below(open.size());
      const FetchClient::Request answer = open[i];
      open.erase(open.begin() + static_cast<long>(i));
      now += 10 * kMicro;
      if (rng.chance(0.1)) continue;  // lost permanently
      for (const ChunkRange& range : answer.ranges) {
        const Ranges one = {range};
        const uint64_t what = rng.below(4);
        if (what == 0) {
          f.on_not_have(answer.id, answer.donor, answer.root, one, false, now);
        } else if (what == 1) {
          f.on_not_have(answer.id, answer.donor, answer.root, one, true, now);
        } else {
          for (Chunk c = range.first; c < range.end; c++) missing.erase({answer.root, c});
          f.on_data(answer.id, answer.donor, answer.root, range, now);
        }
      }
    }
    ASSERT_TRUE(f.idle()) << "seed " << seed;
    ASSERT_TRUE(missing.empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace mcast
