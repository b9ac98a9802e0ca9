// Liveness: which peers are pinged, and which are silent.
#include <gtest/gtest.h>

#include <vector>

#include "protocol/liveness.h"

namespace mcast {
namespace {

TEST(Liveness, SilenceCountsOnlyWhileSomethingIsInFlight) {
  Liveness l({3, 1, 3}, 8 * kSecond);
  EXPECT_EQ(l.watched(), (std::vector<Member>{1, 3}));
  EXPECT_EQ(l.deadline(), kNever);
  EXPECT_EQ(l.silent(100 * kSecond), kNoMember);
  l.set_active(true, 100 * kSecond);
  EXPECT_EQ(l.silent(108 * kSecond), kNoMember);
  l.heard(3, 105 * kSecond);
  EXPECT_EQ(l.silent(108 * kSecond + 1), 1);
  EXPECT_EQ(l.silence(1, 109 * kSecond), 9 * kSecond);
  l.set_active(false, 109 * kSecond);
  EXPECT_EQ(l.silent(200 * kSecond), kNoMember);
  l.set_active(true, 200 * kSecond);
  EXPECT_EQ(l.silent(201 * kSecond), kNoMember) << "idle time is no silence";
}

TEST(Liveness, PingsAfterAQuietIntervalAndNotMoreOften) {
  Liveness l({1, 2}, 8 * kSecond);
  l.set_active(true, 0);
  std::vector<Member> ping;
  l.due(kSecond - 1, ping);
  EXPECT_TRUE(ping.empty());
  l.heard(2, kSecond / 2);
  l.due(kSecond, ping);
  EXPECT_EQ(ping, (std::vector<Member>{1}));
  l.due(kSecond + 1, ping);
  EXPECT_TRUE(ping.empty());
  l.due(2 * kSecond, ping);
  EXPECT_EQ(ping, (std::vector<Member>{1, 2}));
}

TEST(Liveness, OurOwnAbsenceIsNotTheirSilence) {
  Liveness l({1}, 8 * kSecond);
  l.set_active(true, 0);
  for (Nanos t = 0; t <= 7 * kSecond; t += 500 * kMilli) l.on_poll(t);
  l.on_poll(60 * kSecond);  // stopped for 53 s
  EXPECT_EQ(l.silent(60 * kSecond), kNoMember);
  for (Nanos t = 60 * kSecond; t <= 61 * kSecond + 1; t += 500 * kMilli) l.on_poll(t);
  EXPECT_EQ(l.silent(61 * kSecond + 1), 1) << "the silence of before goes on";
}

TEST(Liveness, TheDeadlineIsTheNextPingOrTheVerdict) {
  Liveness l({1}, 8 * kSecond);
  l.set_active(true, 0);
  EXPECT_EQ(l.deadline(), kSecond);
  std::vector<Member> ping;
  l.due(kSecond, ping);
  EXPECT_EQ(l.deadline(), 2 * kSecond);
  l.heard(9, 50);  // not watched
  EXPECT_EQ(l.silence(9, 60 * kSecond), 0);
}

TEST(Liveness, PeerNotYetHeardIsNotMissed) {
  Liveness l({1, 2}, 8 * kSecond);
  EXPECT_TRUE(l.met(1));
  l.await_first_words();
  l.set_active(true, 0);
  EXPECT_EQ(l.deadline(), kNever);
  l.heard(2, 5 * kSecond);
  EXPECT_TRUE(l.met(2));
  EXPECT_FALSE(l.met(1));
  EXPECT_TRUE(l.met(9)) << "not watched";
  std::vector<Member> ping;
  l.due(100 * kSecond, ping);
  EXPECT_EQ(ping, (std::vector<Member>{2}));
  EXPECT_EQ(l.silent(100 * kSecond), 2);
  l.heard(2, 100 * kSecond);
  EXPECT_EQ(l.silent(100 * kSecond), kNoMember);
  l.all_met(100 * kSecond);
  EXPECT_EQ(l.silent(108 * kSecond), kNoMember);
  l.heard(2, 105 * kSecond);
  EXPECT_EQ(l.silent(109 * kSecond), 1);
}

TEST(Liveness, SilenceOfAChangingSetCountsFromTheFirstPing) {
  Liveness l({}, 8 * kSecond, 2 * kSecond);
  l.set_active(true, 0);
  EXPECT_EQ(l.deadline(), kNever);
  l.watch_only({2, 1}, 2 * kSecond);
  EXPECT_EQ(l.deadline(), 4 * kSecond) << "the interval given";
  l.watch_only({1, 2}, 4 * kSecond);
  l.heard(2, 5 * kSecond);
  l.heard(3, 5 * kSecond);  // is not watched
  EXPECT_EQ(l.silent(10 * kSecond), kNoMember);
  EXPECT_EQ(l.silent(10 * kSecond + 1), 1);
  EXPECT_EQ(l.silence(1, 10 * kSecond + 1), 8 * kSecond + 1);
  l.forget(1);
  EXPECT_EQ(l.silent(13 * kSecond), kNoMember);
  EXPECT_EQ(l.silent(13 * kSecond + 1), 2);
}

TEST(Liveness, MembersThatAreWatchedNoMoreAreNotMissed) {
  Liveness l({}, 8 * kSecond, 2 * kSecond);
  l.set_active(true, 0);
  l.watch_only({1, 2}, 2 * kSecond);
  l.watch_only({2}, 4 * kSecond);
  l.heard(2, 9 * kSecond);
  EXPECT_EQ(l.silent(12 * kSecond), kNoMember);
  l.watch_only({1, 2}, 12 * kSecond);
  EXPECT_EQ(l.silent(17 * kSecond), kNoMember) << "silence of 1 begins anew";
  EXPECT_EQ(l.silent(17 * kSecond + 1), 2);
}

TEST(Liveness, AGapOfOursIsCreditedToAChangingSet) {
  Liveness l({}, 8 * kSecond, 2 * kSecond);
  l.set_active(true, 0);
  l.on_poll(2 * kSecond);
  l.watch_only({1}, 2 * kSecond);
  l.on_poll(60 * kSecond);
  EXPECT_EQ(l.silent(60 * kSecond), kNoMember);
  l.watch_only({1}, 61 * kSecond);
  l.on_poll(63 * kSecond);
  EXPECT_EQ(l.silent(68 * kSecond), kNoMember);
  EXPECT_EQ(l.silent(68 * kSecond + 1), 1);
}

}  // namespace
}  // namespace mcast
