// UnaskedAccount: how much may be sent without a grant.
#include <gtest/gtest.h>

#include "protocol/unasked_account.h"

namespace mcast::test {
namespace {

TEST(UnaskedAccount, WaitingOperationIsNotOvertaken) {
  UnaskedAccount account(2);
  const size_t small = UnaskedAccount::kMost / 8, large = small * 2;
  for (Sequence s = 0; s < 8; s++) {
    ASSERT_TRUE(account.room(1, s, small, false));
    account.charge(1, s, small);
  }
  EXPECT_FALSE(account.room(1, 8, large, false));
  account.give_back(1, small);
  EXPECT_FALSE(account.room(1, 8, large, false));
  EXPECT_FALSE(account.room(1, 9, small, false)) << "it is not its turn";
  EXPECT_TRUE(account.room(0, 9, small, false)) << "of another owner";
  account.give_back(1, small);
  EXPECT_TRUE(account.room(1, 8, large, false));
  account.charge(1, 8, large);
  EXPECT_FALSE(account.room(1, 9, small, false));
  account.give_back(1, small);
  EXPECT_TRUE(account.room(1, 9, small, false));
}

// An operation that could not be read earlier finds the account full of later ones, none of which
// is released before it.
TEST(UnaskedAccount, TheOldestAlwaysHasRoom) {
  UnaskedAccount account(2);
  for (Sequence s = 1; account.room(1, s, 1000, false); s++) account.charge(1, s, 1000);
  EXPECT_FALSE(account.room(1, 0, 16384, false));
  EXPECT_TRUE(account.room(1, 0, 16384, true));
}

TEST(UnaskedAccount, FillsWhereHalfOfAnyIsCharged) {
  UnaskedAccount account(3);
  constexpr size_t kHalf = UnaskedAccount::kMost / 2;
  account.charge(1, 0, kHalf);
  EXPECT_FALSE(account.filling());
  account.charge(1, 1, 1);
  account.charge(1, 2, kHalf);
  account.charge(2, 2, kHalf + 1);
  EXPECT_TRUE(account.filling());
  account.give_back(1, kHalf);
  account.give_back(1, 1);
  EXPECT_TRUE(account.filling()) << "of another owner";
  account.give_back(2, 1);
  EXPECT_FALSE(account.filling());
}

}  // namespace
}  // namespace mcast::test
