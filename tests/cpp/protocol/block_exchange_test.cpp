// BlockExchange: the next piece and its receiver, how far others may send, and the end.
#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "protocol/block_exchange.h"

namespace mcast::test {
namespace {

using Lengths = std::vector<uint64_t>;
using Verdict = BlockExchange::Verdict;
constexpr uint64_t kNo = BlockExchange::kNone;

bool any(const BlockExchange::Piece&) { return true; }

TEST(BlockExchange, BeginsWithTheNextRankAndTakesTurns) {
  BlockExchange x({1, 10, 20, 40}, {30, kNo, 10, 0}, {kNo, kNo, kNo, kNo});
  EXPECT_TRUE(x.all_here());
  std::vector<std::pair<Member, uint64_t>> order;
  while (const auto piece = x.next(any)) {
    EXPECT_TRUE(piece->unasked);
    order.emplace_back(piece->to, piece->bytes);
    x.sent(*piece);
  }
  const std::vector<std::pair<Member, uint64_t>> first = {{2, 10}, {3, 0}, {0, 10}};
  EXPECT_EQ(order, first) << "of an empty block that it is empty";
  EXPECT_FALSE(x.all_sent());
  EXPECT_EQ(x.on_grant(0, 30, 31), Verdict::kBroken) << "there is no such byte";
  EXPECT_EQ(x.on_grant(1, 30, 1), Verdict::kBroken) << "our own block";
  EXPECT_EQ(x.on_grant(0, 31, 20), Verdict::kOtherLength);
  EXPECT_EQ(x.on_grant(3, 31, 20), Verdict::kOtherLength) << "of a block that has left";
  EXPECT_EQ(x.on_grant(0, 30, 30), Verdict::kTaken);
  EXPECT_EQ(x.on_grant(0, 30, 12), Verdict::kTaken) << "an older grant is no news";
  const auto rest = x.next(any);
  ASSERT_TRUE(rest);
  EXPECT_FALSE(rest->unasked);
  EXPECT_EQ(rest->offset, 10u);
  EXPECT_EQ(rest->bytes, 20u);
  x.sent(*rest);
  EXPECT_TRUE(x.all_sent());
  EXPECT_FALSE(x.next(any));
}

TEST(BlockExchange, BlockedPeerDelaysOnlyItself) {
  BlockExchange x({0, 10, 20, 40}, {kNo, 10, 10}, {kNo, kNo, kNo});
  const auto piece = x.next([](const BlockExchange::Piece& p) { return p.to != 1; });
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->to, 2);
  x.sent(*piece);
  EXPECT_FALSE(x.next([](const BlockExchange::Piece& p) { return p.to != 1; }));
  EXPECT_TRUE(x.next(any));
}

TEST(BlockExchange, AGrantBeforeTheFirstPieceCountsForThat) {
  BlockExchange x({0, 10, 20, 40}, {kNo, 30}, {kNo, kNo});
  EXPECT_EQ(x.on_grant(1, 30, 25), Verdict::kTaken);
  const auto piece = x.next(any);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->bytes, 20u) << "a whole piece";
  EXPECT_FALSE(piece->unasked);
}

TEST(BlockExchange, TakesPiecesInOrderAndNoOthers) {
  BlockExchange x({0, 10, 20, 40}, {kNo, kNo, kNo, kNo}, {kNo, 30, 0, kNo});
  EXPECT_EQ(x.accept(1, 31, 0, 10), Verdict::kOtherLength);
  EXPECT_EQ(x.accept(2, 5, 0, 5), Verdict::kOtherLength) << "none was expected";
  EXPECT_EQ(x.accept(3, 0, 0, 0), Verdict::kBroken) << "there is no block";
  EXPECT_EQ(x.accept(0, 0, 0, 0), Verdict::kBroken) << "our own";
  EXPECT_EQ(x.accept(1, 30, 1, 9), Verdict::kBroken) << "not from the start";
  EXPECT_EQ(x.accept(1, 30, 0, 11), Verdict::kBroken) << "more than needs no grant";
  EXPECT_EQ(x.accept(1, 30, 0, 0), Verdict::kBroken) << "an empty piece says nothing";
  EXPECT_EQ(x.accept(1, 30, 0, 10), Verdict::kTaken);
  EXPECT_EQ(x.accept(1, 30, 10, 1), Verdict::kBroken) << "not granted";
  const auto grant = x.grant(100);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->to, 1);
  EXPECT_EQ(grant->end, 30u);
  EXPECT_EQ(x.outstanding(), 20u);
  EXPECT_TRUE(x.all_granted());
  EXPECT_EQ(x.accept(1, 30, 10, 21), Verdict::kBroken) << "beyond its end";
  EXPECT_EQ(x.accept(1, 30, 10, 20), Verdict::kTaken);
  EXPECT_EQ(x.outstanding(), 0u);
  EXPECT_EQ(x.accept(1, 30, 30, 0), Verdict::kBroken) << "it is over";
  EXPECT_FALSE(x.all_here());
  EXPECT_EQ(x.accept(2, 0, 0, 0), Verdict::kTaken);
  EXPECT_EQ(x.accept(2, 0, 0, 0), Verdict::kBroken);
  EXPECT_TRUE(x.all_here());
}

TEST(BlockExchange, GrantsInTurnAndAgainWhenHalfHasCome) {
  BlockExchange x({0, 10, 20, 40}, {kNo, kNo, kNo}, {kNo, 100, 100});
  auto grant = x.grant(1000);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->to, 1);
  EXPECT_EQ(grant->end, 50u) << "a window beyond what needs none";
  grant = x.grant(1000);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->to, 2);
  EXPECT_FALSE(x.grant(1000)) << "who has sent nothing is told once";
  EXPECT_EQ(x.outstanding(), 80u);
  EXPECT_EQ(x.accept(1, 100, 0, 20), Verdict::kTaken);
  EXPECT_FALSE(x.grant(1000));
  EXPECT_EQ(x.accept(1, 100, 20, 10), Verdict::kTaken);
  EXPECT_EQ(x.outstanding(), 60u);
  EXPECT_FALSE(x.grant(10)) << "less than a piece, while others are on their way";
  grant = x.grant(1000);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->to, 1);
  EXPECT_EQ(grant->end, 70u);
}

TEST(BlockExchange, GrantsLittleWhereNothingElseWouldCome) {
  BlockExchange x({0, 10, 20, 40}, {kNo, kNo}, {kNo, 100});
  const auto grant = x.grant(3);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->end, 13u);
}

// State machines of all ranks. The messages of each pair keep their order, the pairs do not. All
// blocks arrive, and the data in flight never exceeds the windows.
TEST(BlockExchange, AllBlocksArriveWhateverTheOrder) {
  struct Message {
    bool grant;
    uint64_t total, offset, bytes;
  };
  for (uint64_t seed = 1; seed <= 300; seed++) {
    Rng rng(seed);
    const size_t n = 2 + rng.below(5);
    const uint64_t most = 1 + rng.below(1000);
    std::vector<Lengths> lengths(n, Lengths(n, kNo));
    for (size_t a = 0; a < n; a++) {
      for (size_t b = 0; b < n; b++) {
        if (a != b && rng.chance(0.9)) lengths[a][b] = rng.chance(0.2) ? 0 : rng.below(most);
      }
    }
    const uint64_t unasked = 1 + rng.below(50), piece = unasked + rng.below(100);
    const uint64_t window = 1 + rng.below(300);
    std::vector<BlockExchange> ranks;
    for (size_t a = 0; a < n; a++) {
      Lengths in;
      for (size_t b = 0; b < n; b++) in.push_back(lengths[b][a]);
      ranks.emplace_back(BlockExchange::Params{static_cast<Member>(a), unasked, piece, window},
                         lengths[a], in);
    }
    std::vector<std::deque<Message>> ways(n * n);
    const auto done = [&] {
      for (const BlockExchange& r : ranks) {
        if (!r.all_sent() || !r.all_here()) return false;
      }
      return true;
    };
    for (int i = 0; i < 200'000 && !done(); i++) {
      const size_t a = rng.below(n), b = rng.below(n);
      BlockExchange& x = ranks[a];
      if (rng.chance(0.3) && x.outstanding() < 2 * window) {
        if (const auto g = x.grant(2 * window - x.outstanding())) {
          ways[a * n + g->to].push_back({true, lengths[g->to][a], g->end, 0});
        }
        ASSERT_LE(x.outstanding(), 2 * window);
      }
      if (const auto p = x.next(any); p && rng.chance(0.5)) {
        ways[a * n + p->to].push_back({false, lengths[a][p->to], p->offset, p->bytes});
        x.sent(*p);
      }
      auto& way = ways[a * n + b];
      if (way.empty()) continue;
      const Message m = way.front();
      way.pop_front();
      if (m.grant) {
        ASSERT_EQ(ranks[b].on_grant(static_cast<Member>(a), m.total, m.offset), Verdict::kTaken)
            << seed;
      } else {
        ASSERT_EQ(ranks[b].accept(static_cast<Member>(a), m.total, m.offset, m.bytes),
                  Verdict::kTaken)
            << seed;
      }
    }
    ASSERT_TRUE(done()) << seed;
  }
}

}  // namespace
}  // namespace mcast::test
