// IngressShare: the two lanes share a receiver's link.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "protocol/ingress_share.h"

namespace mcast::test {
namespace {

// A receiver behind a switch port of 125 MB/s that serves its queues in proportion. The multicast
// lane offers `multicast` bytes per second and may have 1 MB in flight; the reduce lane requests 25
// KB at a time, at most 1 MB. The lanes' threads poll up to `late` apart and see then what has
// arrived meanwhile. Returns the reduce lane's rate in the last half second.
double reduce_rate(LanePolicy policy, double multicast, Nanos late = 0) {
  Rng rng(1);
  Nanos turn_m = 0, turn_r = 0;
  double seen_m = 0;
  IngressShare share(policy);
  const Nanos step = 100 * kMicro;
  const double seconds = 1e-9 * static_cast<double>(step), room = 125e6 * seconds, piece = 25e3;
  double arrived_m = 0, arrived_r = 0, queue_m = 0, queue_r = 0, at_half = 0, asked = 0;
  for (Nanos now = 0; now < kSecond; now += step) {
    if (now == kSecond / 2) at_half = arrived_r;
    queue_m = std::min(queue_m + multicast * seconds, 1e6);
    const double served = std::min(1.0, room / std::max(1.0, queue_m + queue_r));
    arrived_m += queue_m * served;
    arrived_r += queue_r * served;
    queue_m -= queue_m * served;
    queue_r -= queue_r * served;
    if (now >= turn_m) {
      seen_m = arrived_m;
      turn_m = now + static_cast<Nanos>(rng.below(static_cast<uint64_t>(late) + 1));
    }
    if (now < turn_r) continue;
    turn_r = now + static_cast<Nanos>(rng.below(static_cast<uint64_t>(late) + 1));
    share.update(static_cast<uint64_t>(seen_m), now);
    const double window = static_cast<double>(share.window(40)) * piece;
    while (asked - arrived_r + piece <= window) {
      asked += piece;
      queue_r += piece;
    }
  }
  return (arrived_r - at_half) * 2;
}

TEST(IngressShare, LeavesTheReduceLaneAloneWithoutMulticast) {
  EXPECT_GT(reduce_rate(LanePolicy::kFair, 0), 120e6);
  EXPECT_GT(reduce_rate(LanePolicy::kGather, 0), 120e6);
  IngressShare share(LanePolicy::kGather);
  for (Nanos now = 0; now < kSecond; now += kMilli) {
    share.update(0, now);
    EXPECT_FALSE(share.pacing());
    EXPECT_EQ(share.window(16), 16u);
  }
}

TEST(IngressShare, UsesTheRateLeftByMulticast) {
  const double rate = reduce_rate(LanePolicy::kGather, 40e6);
  EXPECT_GT(rate, 70e6);
  EXPECT_LT(rate, 95e6);
}

TEST(IngressShare, PoliciesDifferWhereBothWantTheWholeLink) {
  for (const Nanos late : {Nanos{0}, 2 * kMilli}) {
    const double fair = reduce_rate(LanePolicy::kFair, 125e6, late);
    const double gather = reduce_rate(LanePolicy::kGather, 125e6, late);
    EXPECT_GT(fair, 40e6) << late;
    EXPECT_GT(fair, 2.5 * gather) << late;
    EXPECT_GT(gather, 5e6) << "never starved";
  }
}

TEST(IngressShare, EndsSoonAfterTheLastByteOfMulticast) {
  IngressShare share(LanePolicy::kGather);
  Nanos now = 0;
  for (uint64_t i = 1; i <= 100; i++, now += 2 * kMilli) share.update(i * 250'000, now);
  ASSERT_TRUE(share.pacing());
  EXPECT_EQ(share.window(16), 2u);
  EXPECT_EQ(share.window(4), 1u) << "never nothing";
  for (int i = 0; i < 13; i++) share.update(100 * 250'000, now += 3 * kMilli);
  EXPECT_FALSE(share.pacing());
  EXPECT_EQ(share.window(16), 16u);
}

}  // namespace
}  // namespace mcast::test
