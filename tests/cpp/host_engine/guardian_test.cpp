// When a process with a heartbeat counts as hanging.
#include "host_engine/server/guardian.h"

#include <gtest/gtest.h>

namespace mcast::service {
namespace {

constexpr Nanos kStep = 100 * kMilli;

TEST(StillWatch, CountsFromTheLastBeatOnly) {
  StillWatch watch(kStep);
  EXPECT_EQ(watch.look(5, 0), 0);
  EXPECT_EQ(watch.look(5, kStep), kStep);
  EXPECT_EQ(watch.look(5, 2 * kStep), 2 * kStep);
  EXPECT_EQ(watch.look(6, 3 * kStep), 0);
  EXPECT_EQ(watch.look(6, 4 * kStep), kStep);
  EXPECT_EQ(watch.look(6, 4 * kStep + kMilli), kStep + kMilli) << "woken early";
}

TEST(StillWatch, ProcessThatIsStartingIsNotStill) {
  StillWatch watch(kStep);
  for (int i = 1; i < 100; i++) EXPECT_EQ(watch.look(0, i * kStep), 0);
  EXPECT_EQ(watch.look(1, 100 * kStep), 0);
  EXPECT_EQ(watch.look(1, 101 * kStep), kStep);
}

// The machine was suspended, or a debugger has stopped both.
TEST(StillWatch, APauseOfTheWatcherIsOneStep) {
  StillWatch watch(kStep);
  EXPECT_EQ(watch.look(5, 0), 0);
  EXPECT_EQ(watch.look(5, 3600 * kSecond), kStep);
  EXPECT_EQ(watch.look(6, 3600 * kSecond + kStep), 0);
}

TEST(Guardian, WaitsAQuarterOfTheSilenceButForSomeBeats) {
  EXPECT_EQ(guardian_limit(10 * kSecond), 2500 * kMilli);
  EXPECT_EQ(guardian_limit(500 * kMilli), 500 * kMilli);
}

}  // namespace
}  // namespace mcast::service
