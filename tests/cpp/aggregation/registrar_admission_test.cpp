// When an aggregator may be asked again.
#include "aggregation/member/admission.h"

#include <gtest/gtest.h>

namespace mcast::test {
namespace {

wire::Accept one_station(uint64_t uid) {
  wire::Accept answer;
  answer.stations.push_back({uid, "10.0.0.9", 7000, 65536});
  return answer;
}

TEST(Admission, WaitsDoubleUpToHalfAMinute) {
  Admission a({"agg", 7117});
  EXPECT_TRUE(a.to_be_asked(0));
  Nanos now = kSecond;
  for (const double wait : {0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0}) {
    a.asking(now);
    EXPECT_FALSE(a.to_be_asked(kNever));
    a.failed("cannot connect", now);
    EXPECT_EQ(a.next() - now, static_cast<Nanos>(wait * 1e9));
    EXPECT_FALSE(a.to_be_asked(a.next() - 1));
    now = a.next();
    EXPECT_TRUE(a.to_be_asked(now));
  }
}

// Admission alone does not reset the wait: if one rank never reaches the aggregator, all ranks
// would retry too often forever.
TEST(Admission, WaitsBeginAnewOnceItsStationsHaveBeenInForce) {
  Admission a({"agg", 7117});
  Nanos now = kSecond;
  for (const double wait : {1.0, 2.0, 4.0, 8.0}) {
    a.asking(now);
    ASSERT_TRUE(a.accepted(one_station(5), {}, now));
    a.lost("rank 3 cannot reach it", now);
    EXPECT_EQ(a.next() - now, static_cast<Nanos>(wait * 1e9));
    now = a.next();
  }
  a.asking(now);
  ASSERT_TRUE(a.accepted(one_station(6), {}, now));
  a.in_force({7});
  a.in_force({6, 7});
  a.lost("rank 3 has lost it", now);
  EXPECT_EQ(a.next() - now, Admission::kWaitAfterLoss);
  EXPECT_FALSE(a.has(6));
  EXPECT_TRUE(a.stations().empty());
}

// docs/aggregators.md lists these codes.
TEST(Admission, ARefusalBeginsWithItsCode) {
  Admission a({"agg", 7117});
  a.refused({"quota", "512M are in use"}, 0);
  EXPECT_EQ(a.stats().reason, "quota: 512M are in use");
  a.refused({"jobs", ""}, 0);
  EXPECT_EQ(a.stats().reason, "jobs");
}

// They go to logs and to Python's str, which accepts only UTF-8.
TEST(Admission, TextsFromOutsideAreShortAndPlain) {
  Admission a({"agg", 7117});
  a.asking(0);
  a.refused({"quota", std::string(5000, 'x')}, 0);
  EXPECT_LE(a.stats().reason.size(), 300u);
  EXPECT_EQ(a.stats().address, "agg:7117");
  a.refused({"\x1b[2J", "\xff\xfe is \xc3\xa9\ttoo much\x7f"}, 0);
  EXPECT_EQ(a.stats().reason, "?[2J: ?? is ???too much?");
  for (const char* host : {"10.0.0.\xff", "a\x07", "\xc3\xa9"}) {
    wire::Accept answer = one_station(5);
    answer.stations[0].host = host;
    a.asking(0);
    EXPECT_FALSE(a.accepted(answer, {}, 0));
    EXPECT_EQ(a.stats().state, "unreachable");
  }
}

}  // namespace
}  // namespace mcast::test
