// ReachProbe: which ranks join, which receive which, and how the result is reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "protocol/probe.h"

namespace mcast {
namespace {

ReachProbe::Params probe_of(Member self, uint32_t members, uint32_t children) {
  ReachProbe::Params p;
  p.self = self;
  p.members = members;
  p.children = children;
  p.timeout = kSecond;
  p.bytes = 1440;
  return p;
}

ReachProbe started(Member self, uint32_t members, uint32_t children) {
  ReachProbe p(probe_of(self, members, children), 0);
  p.start(0);
  return p;
}

using Reach = ReachProbe::Reach;

TEST(ReachProbe, TheSubtreeHasJoinedWhenAllChildrenSaySo) {
  ReachProbe p(probe_of(0, 3, 2), 0);
  Reach reach;
  std::string why;
  EXPECT_FALSE(p.joined(reach, why));
  p.on_joined(0, Reach::kUnknown, "");
  p.on_joined(0, Reach::kUnknown, "");
  EXPECT_FALSE(p.joined(reach, why));
  p.on_joined(1, Reach::kKnown, "");
  EXPECT_TRUE(p.joined(reach, why));
  EXPECT_EQ(reach, Reach::kUnknown) << "the least counts";
  EXPECT_FALSE(p.joined(reach, why)) << "once";

  ReachProbe known(probe_of(0, 3, 2), 0), none(probe_of(0, 3, 2), 0);
  for (uint32_t c = 0; c < 2; c++) {
    known.on_joined(c, Reach::kKnown, "");
    none.on_joined(c, Reach::kNone, "rank " + std::to_string(c + 1) + ": no socket");
  }
  EXPECT_TRUE(known.joined(reach, why));
  EXPECT_EQ(reach, Reach::kUnknown) << "as much as this member knows itself";
  EXPECT_TRUE(none.joined(reach, why));
  EXPECT_EQ(reach, Reach::kNone);
  EXPECT_EQ(why, "rank 1: no socket; rank 2: no socket");
}

TEST(ReachProbe, NoClockRunsBeforeAllHaveJoined) {
  ReachProbe p(probe_of(0, 3, 1), 0);
  bool ok = false;
  std::string why;
  Reach reach;
  p.on_joined(0, Reach::kUnknown, "");
  EXPECT_TRUE(p.joined(reach, why));
  EXPECT_FALSE(p.send_due(1000 * kSecond));
  EXPECT_FALSE(p.verdict(1000 * kSecond, ok, why));
  EXPECT_EQ(p.deadline(), kNever);
  p.start(1000 * kSecond);
  p.on_status(0, true, "");
  EXPECT_TRUE(p.send_due(1000 * kSecond));
  EXPECT_FALSE(p.verdict(1001 * kSecond - 1, ok, why));
  EXPECT_TRUE(p.verdict(1002 * kSecond, ok, why));
  EXPECT_FALSE(ok);
}

TEST(ReachProbe, ReportsMissingRanksWhenTheyChange) {
  ReachProbe p(probe_of(0, 30, 3), 0);
  const auto here = [](uint32_t child) { return child == 1; };
  const auto all = [](uint32_t) { return true; };
  std::string text;
  EXPECT_EQ(p.open_text(1, here), "rank(s) 1, 3 have not joined");
  EXPECT_FALSE(p.news(kSecond / 2, "", 1, here, text));
  p.on_missing(1, "rank(s) 8 have not joined");
  EXPECT_TRUE(p.news(p.deadline(), "", 1, here, text));
  EXPECT_EQ(text, "rank(s) 1, 3 have not joined; rank(s) 8 have not joined");
  EXPECT_FALSE(p.news(p.deadline(), "", 1, here, text)) << "no news";
  EXPECT_TRUE(p.news(p.deadline(), "", 1, all, text));
  EXPECT_EQ(text, "rank(s) 8 have not joined");
  EXPECT_TRUE(p.news(p.deadline(), "rank(s) 0 too", 1, all, text));
  EXPECT_EQ(text, "rank(s) 0 too; rank(s) 8 have not joined");
  for (uint32_t c = 0; c < 3; c++) p.on_joined(c, Reach::kUnknown, "");
  EXPECT_EQ(p.open_text(1, all), "");
  Reach reach;
  EXPECT_TRUE(p.joined(reach, text));
  EXPECT_FALSE(p.news(1000 * kSecond, "", 1, all, text));
  EXPECT_EQ(p.deadline(), kNever);
}

TEST(ReachProbe, GoodWhenAllAreHeardHereAndBelow) {
  ReachProbe p = started(0, 3, 1);
  bool ok = false;
  std::string why;
  p.on_probe(1);
  p.on_probe(1);
  EXPECT_FALSE(p.verdict(10, ok, why));
  p.on_probe(2);
  EXPECT_FALSE(p.verdict(10, ok, why)) << "a child has not spoken";
  p.on_status(0, true, "");
  EXPECT_TRUE(p.verdict(10, ok, why));
  EXPECT_TRUE(ok);
  EXPECT_EQ(why, "");
  EXPECT_FALSE(p.verdict(11, ok, why)) << "once";
}

TEST(ReachProbe, NamesRanksItDoesNotReceive) {
  ReachProbe p = started(2, 4, 0);
  bool ok = true;
  std::string why;
  p.on_probe(1);
  EXPECT_LT(p.deadline(), kMilli) << "a probe is due";
  EXPECT_TRUE(p.send_due(kMilli));
  EXPECT_FALSE(p.verdict(kSecond - 1, ok, why));
  EXPECT_TRUE(p.verdict(kSecond + 10 * kMilli, ok, why));
  EXPECT_FALSE(ok);
  EXPECT_EQ(why, "rank 2 does not hear rank 0, 3");
}

TEST(ReachProbe, ReasonNamesTheMtuWhereOnlySmallProbesArrive) {
  ReachProbe p = started(2, 5, 0);
  EXPECT_TRUE(p.send_due(kMilli));
  EXPECT_FALSE(p.small_due()) << "one sweep of full ones is normally enough";
  EXPECT_TRUE(p.send_due(p.deadline()));
  EXPECT_TRUE(p.small_due());
  p.on_probe(0, false);
  p.on_probe(1);
  p.on_probe(3, false);
  p.on_probe(3);
  bool ok = true;
  std::string why;
  EXPECT_FALSE(p.verdict(kSecond - 1, ok, why)) << "small ones prove no reach";
  EXPECT_TRUE(p.verdict(kSecond + 10 * kMilli, ok, why));
  EXPECT_FALSE(ok);
  EXPECT_EQ(why,
            "rank 2 does not hear rank 4; rank 2 hears only small datagrams of rank 0: IP packets "
            "of 1468 bytes are lost, so the path has a smaller MTU; set MCAST_MAX_MTU to it on all "
            "ranks");
}

TEST(ReachProbe, AChildsReasonTravelsUp) {
  ReachProbe p = started(0, 3, 2);
  bool ok = true;
  std::string why;
  p.on_probe(1);
  p.on_probe(2);
  p.on_status(0, false, "rank 1 does not hear rank 2");
  EXPECT_FALSE(p.verdict(5, ok, why));
  p.on_status(1, true, "");
  EXPECT_TRUE(p.verdict(5, ok, why));
  EXPECT_FALSE(ok);
  EXPECT_EQ(why, "rank 1 does not hear rank 2");
}

TEST(ReachProbe, ProbesThinOutAndNoDeadlineStaysInThePast) {
  ReachProbe p = started(0, 3, 1);
  Nanos now = 0, gap = 0;
  for (int i = 0; i < 10; i++) {
    EXPECT_TRUE(p.send_due(now));
    EXPECT_FALSE(p.send_due(now));
    EXPECT_GE(p.deadline() - now, gap);
    gap = p.deadline() - now;
    now = p.deadline();
  }
  now = 5 * kSecond;
  EXPECT_TRUE(p.send_due(now));
  bool ok = false;
  std::string why;
  EXPECT_FALSE(p.verdict(now, ok, why)) << "the child may have started later";
  EXPECT_GT(p.deadline(), now);
}

// Other ranks delay a verdict for minutes because the links are full; probes must not keep them
// full.
TEST(ReachProbe, BeyondTheTimeLimitProbesBecomeRare) {
  for (const uint32_t members : {3u, 128u}) {
    ReachProbe p = started(0, members, 1);
    uint64_t before = 0, after = 0;
    for (Nanos now = 0; now < 1000 * kSecond; now = p.deadline()) {
      if (!p.send_due(now)) break;
      (now < 2 * kSecond ? before : after)++;
    }
    EXPECT_GE(before, 8u) << members;
    EXPECT_LE(after, 35u) << members;
  }
}

// For any size of the group: the probes that arrive at a member, and the attempts of each member.
TEST(ReachProbe, TheRateOfAllTogetherIsBounded) {
  for (const uint32_t members : {2u, 64u, 256u, 1024u, 10'000u}) {
    uint64_t sent = 0;
    Nanos tries_end = 0;
    std::vector<uint32_t> each(members);
    for (Member m = 0; m < members; m++) {
      ReachProbe p = started(m, members, 0);
      bool ok = true;
      std::string why;
      Nanos now = 0;
      while (!p.verdict(now, ok, why)) {
        now = p.deadline();
        if (p.send_due(now)) {
          each[m]++;
          sent += now < kSecond ? 1 : 0;
        }
      }
      tries_end = std::max(tries_end, now);
      EXPECT_GE(each[m], 4u) << "chances of rank " << m << " of " << members;
    }
    RecordProperty("probes_in_first_second_of_" + std::to_string(members), static_cast<int>(sent));
    EXPECT_LE(sent, members + 6200u) << "of " << members;
    EXPECT_LE(tries_end, 8 * kSecond) << members;
  }
}

TEST(ReachProbe, ReasonsAreBounded) {
  ReachProbe p = started(0, 40, 30);
  for (uint32_t c = 0; c < 30; c++) p.on_status(c, false, std::string(5000, 'x'));
  bool ok = true;
  std::string why;
  EXPECT_TRUE(p.verdict(2 * kSecond, ok, why));
  EXPECT_LT(why.size(), 2000u);
  EXPECT_NE(why.find("and 31 more"), std::string::npos) << why.substr(0, 200);
  ReachProbe joining(probe_of(0, 1000, 900), 0);
  for (uint32_t c = 0; c < 900; c++) joining.on_missing(c, std::string(5000, 'x'));
  EXPECT_LT(joining.open_text(1, [](uint32_t) { return true; }).size(), 2000u);
  EXPECT_LT(joining.open_text(1, [](uint32_t) { return false; }).size(), 2000u);
}

}  // namespace
}  // namespace mcast
