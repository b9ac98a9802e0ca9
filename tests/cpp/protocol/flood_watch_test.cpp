// FloodWatch: which traffic counts as a harmful flood.
#include <gtest/gtest.h>

#include "protocol/flood_watch.h"

namespace mcast {
namespace {

using Seen = FloodWatch::Seen;

// Adds a second's traffic to the totals and checks them.
class Watched {
 public:
  Seen second(FloodWatch::Totals more, Nanos time = kSecond) {
    totals_.verified += more.verified;
    totals_.useless += more.useless;
    totals_.live += more.live;
    totals_.repaired += more.repaired;
    totals_.foreign += more.foreign;
    return watch_.look(totals_, now_ += time);
  }
  FloodWatch& watch() { return watch_; }

 private:
  FloodWatch watch_;
  FloodWatch::Totals totals_;
  Nanos now_ = 17 * kSecond;
};

constexpr FloodWatch::Totals kHarm{100, 20000, 100, 900};

TEST(FloodWatch, FiveSecondsOfNoiseAndMostDataByRepair) {
  Watched w;
  EXPECT_EQ(w.second(kHarm), Seen::kNothing) << "nothing to compare with yet";
  for (int round = 0; round < 2; round++) {
    for (int i = 1; i < FloodWatch::kWindows; i++) EXPECT_EQ(w.second(kHarm), Seen::kNoise);
    EXPECT_EQ(w.second(kHarm), Seen::kFlooded) << "and the evidence starts anew";
  }
  EXPECT_EQ(w.watch().rate(), 20000u);
}

TEST(FloodWatch, NoiseWithoutHarmAndHarmWithoutNoiseAreNoFlood) {
  const FloodWatch::Totals harmless{1000, 20000, 1000, 10}, mere_loss{100, 500, 100, 900},
      few{1, 999, 0, 10}, late{0, 3600, 0, 900};
  for (const auto& one : {harmless, mere_loss, few, late}) {
    Watched w;
    for (int i = 0; i < 20; i++) EXPECT_NE(w.second(one), Seen::kFlooded);
  }
  Watched w;
  w.second(few);
  EXPECT_EQ(w.second(harmless), Seen::kNoise);
  EXPECT_EQ(w.second(late), Seen::kCalm) << "what was repaired may come late, four times";
}

// Groups of the same hosts share addresses: a member on the ring that receives only another group's
// data stays at the address.
TEST(FloodWatch, OtherGroupsDataIsNoNoiseUnlessHarmful) {
  const FloodWatch::Totals others{0, 20000, 0, 0, 20000}, both{0, 20000, 0, 0, 19001},
      junk{0, 20000, 0, 0, 19000}, harm{100, 20000, 100, 900, 20000};
  Watched w;
  w.second(others);
  EXPECT_EQ(w.second(others), Seen::kCalm);
  EXPECT_EQ(w.second(both), Seen::kCalm);
  EXPECT_EQ(w.second(junk), Seen::kNoise);
  for (int i = 1; i < FloodWatch::kWindows; i++) EXPECT_EQ(w.second(harm), Seen::kCalm);
  EXPECT_EQ(w.second(harm), Seen::kFlooded);
}

TEST(FloodWatch, OneGoodSecondClearsTheEvidence) {
  Watched w;
  w.second(kHarm);
  for (int i = 1; i < FloodWatch::kWindows; i++) w.second(kHarm);
  EXPECT_EQ(w.second({1000, 0, 1000, 0}), Seen::kCalm);
  for (int i = 1; i < FloodWatch::kWindows; i++) EXPECT_EQ(w.second(kHarm), Seen::kNoise);
  EXPECT_EQ(w.second(kHarm), Seen::kFlooded);
}

TEST(FloodWatch, SecondsWithoutDataSayNothing) {
  Watched w;
  w.second(kHarm);
  for (int i = 1; i < FloodWatch::kWindows; i++) {
    w.second(kHarm);
    EXPECT_EQ(w.second({0, 20000, 0, 0}), Seen::kNoise) << "no chunk: nobody is harmed";
    EXPECT_EQ(w.second({0, 500000, 0, 0}, 30 * kSecond), Seen::kNothing) << "nobody looked";
  }
  EXPECT_EQ(w.second(kHarm), Seen::kFlooded);
  EXPECT_EQ(w.second(kHarm, kSecond / 2), Seen::kNothing) << "the window goes on";
}

}  // namespace
}  // namespace mcast
