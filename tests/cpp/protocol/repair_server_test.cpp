// RepairServer: the replies of a root, and its repetitions by multicast.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "protocol/repair_server.h"
#include "support/seeds.h"

namespace mcast {
namespace {

using Ranges = std::vector<ChunkRange>;
constexpr Chunk kChunks = 100;

struct Flushed {
  Ranges again;
  std::vector<RepairServer::Answer> answers;
};
Flushed flush(RepairServer& s) {
  Flushed f;
  s.flush(f.again, f.answers);
  return f;
}

TEST(RepairServer, HoldsThenAnswersOneAskerByStream) {
  RepairServer s(100, kChunks);
  EXPECT_EQ(s.deadline(), kNever);
  s.add(1, 7, {{2, 5}}, 1000);
  EXPECT_EQ(s.deadline(), 1100);
  const Flushed f = flush(s);
  EXPECT_TRUE(f.again.empty());
  ASSERT_EQ(f.answers.size(), 1u);
  EXPECT_EQ(f.answers[0].id, 7u);
  EXPECT_EQ(f.answers[0].unicast, (Ranges{{2, 5}}));
  EXPECT_TRUE(f.answers[0].coming.empty());
  EXPECT_EQ(s.deadline(), kNever);
}

TEST(RepairServer, ChunkRequestedByTwoRanksIsMulticastAgain) {
  RepairServer s(100, kChunks);
  s.add(1, 1, {{0, 10}}, 0);
  s.add(2, 2, {{5, 15}}, 50);
  EXPECT_EQ(s.deadline(), 100);
  const Flushed f = flush(s);
  EXPECT_EQ(f.again, (Ranges{{5, 10}}));
  EXPECT_EQ(f.answers[0].unicast, (Ranges{{0, 5}}));
  EXPECT_EQ(f.answers[0].coming, (Ranges{{5, 10}}));
  EXPECT_EQ(f.answers[1].unicast, (Ranges{{10, 15}}));
}

TEST(RepairServer, ARankThatAsksTwiceIsOneRank) {
  RepairServer s(100, kChunks);
  s.add(1, 1, {{0, 10}}, 0);
  s.add(1, 2, {{0, 10}, {3, 4}}, 0);
  EXPECT_TRUE(flush(s).again.empty());
}

TEST(RepairServer, RepeatsAChunkAFewTimesThenServesByStream) {
  RepairServer s(0, kChunks);
  for (size_t i = 0; i < RepairServer::kMaxRepeats; i++) {
    s.add(1, 1, {{4, 6}}, 0);
    s.add(2, 2, {{4, 6}}, 0);
    EXPECT_EQ(flush(s).again, (Ranges{{4, 6}}));
  }
  s.add(1, 1, {{4, 8}}, 0);
  s.add(2, 2, {{4, 8}}, 0);
  const Flushed f = flush(s);
  EXPECT_EQ(f.again, (Ranges{{6, 8}}));
  for (const auto& a : f.answers) {
    EXPECT_EQ(a.unicast, (Ranges{{4, 6}}));
    EXPECT_EQ(a.coming, (Ranges{{6, 8}}));
  }
}

// Compares it with a model that counts requests per chunk.
TEST(RepairServer, RandomRequestsAgainstAModel) {
  for (const uint64_t seed : test::seeds(300)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    RepairServer s(0, kChunks);
    std::map<Chunk, size_t> repeats;
    for (int round = 0; round < 5; round++) {
      std::map<Chunk, std::set<Member>> askers;
      std::map<uint32_t, std::set<Chunk>> wanted;
      for (uint32_t id = 0; id < 6; id++) {
        const auto asker = static_cast<Member>(rng.below(4));
        Ranges ranges;
        for (Chunk at = static_cast<Chunk>(rng.below(10)); at < 60;) {
          const auto end = at + 1 + static_cast<Chunk>(rng.below(10));
          ranges.push_back({at, end});
          for (Chunk c = at; c < end; c++) {
            askers[c].insert(asker);
            wanted[id].insert(c);
          }
          at = end + static_cast<Chunk>(rng.below(20));
        }
        if (!ranges.empty()) s.add(asker, id, ranges, 0);
      }
      const Flushed f = flush(s);
      std::set<Chunk> again;
      Chunk last = 0;
      for (const ChunkRange& r : f.again) {
        ASSERT_LT(r.first, r.end);
        ASSERT_GE(r.first, last);
        last = r.end;
        for (Chunk c = r.first; c < r.end; c++) again.insert(c);
      }
      for (Chunk c = 0; c < 100; c++) {
        const bool expected = askers[c].size() >= 2 && repeats[c] < RepairServer::kMaxRepeats;
        ASSERT_EQ(again.count(c) > 0, expected) << "seed " << seed << " chunk " << c;
        repeats[c] += expected ? 1 : 0;
      }
      for (const auto& a : f.answers) {
        std::set<Chunk> told;
        for (const auto* list : {&a.unicast, &a.coming}) {
          for (const ChunkRange& r : *list) {
            for (Chunk c = r.first; c < r.end; c++) {
              ASSERT_TRUE(told.insert(c).second);
              ASSERT_EQ(again.count(c) > 0, list == &a.coming);
            }
          }
        }
        ASSERT_EQ(told, wanted[a.id]);
      }
    }
  }
}

}  // namespace
}  // namespace mcast
