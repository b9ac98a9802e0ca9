// The security report of a group whose operations are carried out by parts of it.
#include <gtest/gtest.h>

#include "runtime/split.h"

namespace mcast::test {
namespace {

struct OpenSplit : Split {
  using Split::add_counters;
};

TEST(SplitStats, TheEpochIsThatOfThePartThatIsFurthest) {
  GroupStats whole, first, second;
  first.counters = second.counters = whole.counters;
  whole.security.epoch = 1;
  first.security.epoch = 7;
  second.security.epoch = 3;
  first.security.sealed = second.security.opened = 5;
  OpenSplit::add_counters(whole, first);
  OpenSplit::add_counters(whole, second);
  EXPECT_EQ(whole.security.epoch, 7u);
  EXPECT_EQ(whole.security.sealed, 5u);
  EXPECT_EQ(whole.security.opened, 5u);
}

}  // namespace
}  // namespace mcast::test
