// Tests ageing in virtual time: idle blocks are reported in time, busy and finished blocks never.
#include "aggregation/fold/ageing.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace mcast::aggregation {
namespace {

// Polls like a lane: often, at irregular intervals.
TEST(Ageing, ReportsAnIdleBlockSoonAfterItsDeadline) {
  constexpr Nanos kDeadline = 100 * kMilli;
  Rng rng(3);
  for (int run = 0; run < 50; run++) {
    BlockTable table(8, 4);
    Ageing ageing(kDeadline);
    Nanos now = static_cast<Nanos>(rng.below(kSecond));
    const BlockKey busy{1, 1, 1}, idle{1, 1, 2}, done{1, 1, 3};
    for (const BlockKey& key : {busy, idle, done}) table.insert(key, now);
    table.find(done)->folded = true;
    const Nanos since = now;
    Nanos told = 0;
    while (told == 0 && now < since + 3 * kDeadline) {
      now += static_cast<Nanos>(rng.below(3 * kMilli));
      table.find(busy)->touched = now;
      if (const auto key = ageing.scan(table, now)) {
        EXPECT_EQ(*key, idle);
        told = now;
      }
      if (told == 0) {
        EXPECT_LE(ageing.next(), now + kDeadline / 16);
      }
    }
    EXPECT_GE(told - since, kDeadline);
    EXPECT_LE(told - since, kDeadline + kDeadline / 16 + 3 * kMilli);  // polls are up to 3 ms late
  }
}

TEST(Ageing, OldestOfSeveralIsReportedFirst) {
  BlockTable table(8, 4);
  for (uint32_t q = 0; q < 8; q++) table.insert({1, 1, q}, q == 5 ? 1 : 10);
  Ageing ageing(16);
  std::optional<BlockKey> told;
  for (Nanos now = 40; !told && now < 100; now++) told = ageing.scan(table, now);
  EXPECT_EQ(told, (BlockKey{1, 1, 5}));
  table.erase(*table.find(*told));
  told.reset();
  Nanos now = 100;
  for (; !told && now < 200; now++) told = ageing.scan(table, now);
  EXPECT_TRUE(told && told->number != 5) << "then another";
  table.erase_operation(1, 1, [](const BlockRecord&) {});
  for (told.reset(); now < 300; now++) EXPECT_FALSE(ageing.scan(table, now).has_value());
}

}  // namespace
}  // namespace mcast::aggregation
