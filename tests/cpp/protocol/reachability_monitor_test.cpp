// ReachabilityMonitor: the evidence that a root's multicast no longer arrives.
#include <gtest/gtest.h>

#include "protocol/reachability_monitor.h"

namespace mcast {
namespace {

TEST(ReachabilityMonitor, SeveralSilentStreamsInARow) {
  ReachabilityMonitor d(2);
  EXPECT_FALSE(d.on_stream(0, 0, 30, false));
  EXPECT_FALSE(d.on_stream(0, 1, 30, false));
  EXPECT_FALSE(d.on_stream(1, 1, 30, false)) << "counted by root";
  EXPECT_TRUE(d.on_stream(0, 2, 30, false));
  EXPECT_FALSE(d.on_stream(0, 3, 30, false)) << "the evidence starts anew";
  for (Sequence s = 0; s + 1 < ReachabilityMonitor::kManyStreams; s++) {
    EXPECT_FALSE(d.on_stream(1, 10 + s, 1, false)) << "few chunks: many streams are needed";
    if (s == 3) d.on_stream(1, 10 + s, 1, true);
  }
}

TEST(ReachabilityMonitor, RepairsThatEndTogetherAreNoEvidenceOnceLaterDataWasHeard) {
  ReachabilityMonitor d(1);
  d.on_heard(0, 100);
  for (Sequence s = 0; s <= 100; s++) EXPECT_FALSE(d.on_stream(0, s, 100, false));
  EXPECT_FALSE(d.on_stream(0, 101, 100, false));
  EXPECT_FALSE(d.on_stream(0, 102, 100, false));
  EXPECT_TRUE(d.on_stream(0, 103, 100, false));
}

}  // namespace
}  // namespace mcast
