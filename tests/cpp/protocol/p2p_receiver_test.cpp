// P2pReceiver: invalid heads and pieces, grants, accounts.
#include "protocol/p2p_receiver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "protocol/p2p_values.h"

namespace mcast::test {
namespace {

using Answer = P2pReceiver::Verdict;

TEST(P2pReceiver, RefusesHeadsThatMayNotBe) {
  const P2pParams params = p2p_params();
  P2pReceiver r(params);
  EXPECT_EQ(r.on_head(1, 5, 5), Answer::kBroken) << "out of order";
  EXPECT_EQ(r.on_head(0, 5, 4), Answer::kBroken) << "neither all that may be nor nothing";
  EXPECT_EQ(r.on_head(0, 100, 11), Answer::kBroken) << "more than may leave unasked";
  EXPECT_EQ(r.on_head(0, 100, 10), Answer::kTaken);
  EXPECT_EQ(r.on_head(0, 100, 10), Answer::kBroken) << "again";
  EXPECT_EQ(r.on_head(1, 100, 10), Answer::kTaken);
  EXPECT_EQ(r.on_head(2, 1, 1), Answer::kBroken) << "beyond the account";
  for (uint32_t n = 2; n < params.heads; n++) EXPECT_EQ(r.on_head(n, 1, 0), Answer::kTaken);
  EXPECT_EQ(r.on_head(8, 1, 0), Answer::kBroken) << "beyond the account of heads";
}

TEST(P2pReceiver, TakesPiecesInOrderAndNoOthers) {
  P2pReceiver r(p2p_params());
  EXPECT_EQ(r.on_data(0, 0, 1), Answer::kBroken) << "there is no message";
  ASSERT_EQ(r.on_head(0, 100, 10), Answer::kTaken);
  EXPECT_EQ(r.on_data(0, 10, 1), Answer::kBroken) << "not granted";
  EXPECT_FALSE(r.grant(100)) << "no receive has taken it";
  EXPECT_EQ(r.take(0), Answer::kTaken);
  EXPECT_EQ(r.incomplete(), 1u);
  auto g = r.grant(1000);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->number, 0u);
  EXPECT_EQ(g->end, 70u) << "a window beyond what is here";
  EXPECT_EQ(r.outstanding(), 60u);
  EXPECT_EQ(r.on_data(0, 11, 1), Answer::kBroken) << "a gap";
  EXPECT_EQ(r.on_data(0, 10, 61), Answer::kBroken) << "beyond the grant";
  EXPECT_EQ(r.on_data(0, 10, 0), Answer::kBroken) << "an empty piece says nothing";
  EXPECT_EQ(r.on_data(0, 10, 29), Answer::kTaken);
  EXPECT_FALSE(r.grant(1000)) << "more than half is on its way";
  EXPECT_EQ(r.on_data(0, 39, 1), Answer::kTaken);
  EXPECT_FALSE(r.grant(29)) << "less than a piece, while something comes";
  g = r.grant(1000);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->end, 100u);
  EXPECT_FALSE(r.asking());
  EXPECT_EQ(r.on_data(0, 40, 60), Answer::kComplete);
  EXPECT_EQ(r.outstanding(), 0u);
  EXPECT_EQ(r.incomplete(), 0u);
  EXPECT_EQ(r.on_data(0, 100, 1), Answer::kBroken) << "it is over";
}

TEST(P2pReceiver, GrantsLittleWhereNothingElseWouldCome) {
  P2pReceiver r(p2p_params());
  ASSERT_EQ(r.on_head(0, 100, 0), Answer::kTaken);
  r.take(0);
  const auto g = r.grant(3);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->end, 3u);
}

TEST(P2pReceiver, TellsOfTheAccountsWhenHalfIsGivenBack) {
  P2pReceiver r(p2p_params());
  ASSERT_EQ(r.on_head(0, 10, 10), Answer::kTaken);
  EXPECT_FALSE(r.credit());
  EXPECT_EQ(r.take(0), Answer::kComplete);
  auto credit = r.credit();
  ASSERT_TRUE(credit) << "half of the bytes";
  EXPECT_EQ(credit->heads, 1u);
  EXPECT_EQ(credit->bytes, 10u);
  EXPECT_FALSE(r.credit()) << "told";
  for (uint32_t n = 1; n <= 4; n++) {
    ASSERT_EQ(r.on_head(n, 0, 0), Answer::kTaken);
    EXPECT_FALSE(r.credit());
    EXPECT_EQ(r.take(n), Answer::kComplete);
  }
  credit = r.credit();
  ASSERT_TRUE(credit) << "half of the heads";
  EXPECT_EQ(credit->heads, 5u);
}

}  // namespace
}  // namespace mcast::test
