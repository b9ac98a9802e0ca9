// How long a lane may sleep while much data is in flight. Virtual time; the saving of such a pause
// can only be measured on a real machine.
#include <gtest/gtest.h>

#include "support/program.h"

namespace mcast::test {
namespace {

constexpr size_t kBlockBytes = 16 << 20;
constexpr size_t kWindow = 2 << 20;

struct Coalesced {
  Cluster cluster;
  Runs runs;

  explicit Coalesced(double rate, size_t budget = 8 << 20) : cluster(links(rate, budget)) {}
  static ClusterOptions links(double rate, size_t budget) {
    ClusterOptions o;
    o.ranks = 3;
    o.net.rate = rate;
    o.net.receive_budget = o.group.agreed.budget = budget;
    return o;
  }
  void broadcast(size_t bytes) {
    for (Member r = 0; r < 3; r++) runs.push_back(cluster.broadcast(r, 0, bytes, 1));
  }
  // Runs until rank 1 has received this many bytes.
  void until(size_t bytes) {
    ASSERT_TRUE(cluster.run([&] {
      return cluster.group(1).counters().get(Counter::datagram_bytes_received) >= bytes;
    }));
  }
  // Returns the pause that the lane allows after `time`, in which it has counted the data that
  // arrived.
  Nanos ask(Member r, Nanos time = 200 * kMicro) {
    (void)cluster.lane(r).coalesce(cluster.now());
    cluster.run_for(time);
    return cluster.lane(r).coalesce(cluster.now());
  }
  void finish() {
    ASSERT_TRUE(cluster.run([&] { return all_done(runs); }));
    expect_good(runs, 3);
  }
};

TEST(Coalescing, WhileMuchIsOnItsWay) {
  constexpr double kRate = 1.25e9;  // 10 Gbit/s
  Coalesced n(kRate);
  n.broadcast(kBlockBytes);
  n.until(kBlockBytes / 2);
  const Nanos pause = n.ask(1);
  EXPECT_GE(pause, 100 * kMicro);
  EXPECT_LE(pause, 200 * kMicro);
  EXPECT_LE(static_cast<double>(pause) / kSecond * kRate, kWindow / 8 * 1.1);
  EXPECT_EQ(n.cluster.lane(1).coalesce(n.cluster.now()), 0) << "nothing has come since";
  EXPECT_EQ(n.ask(0), 0);  // credit wakes the root
  n.finish();
}

TEST(Coalescing, NotForTheLastWindow) {
  Coalesced n(1.25e9);
  n.broadcast(kBlockBytes);
  n.until(kBlockBytes - kWindow / 2);
  EXPECT_EQ(n.ask(1), 0);
  n.finish();
  EXPECT_EQ(n.ask(1), 0);
  n.broadcast(16 << 10);
  n.finish();
  EXPECT_EQ(n.ask(1), 0);
}

TEST(Coalescing, NotWhereLittleComesInOne) {
  Coalesced n(125e6);  // 25 KB in the longest pause
  n.broadcast(kBlockBytes);
  n.until(kBlockBytes / 2);
  EXPECT_EQ(n.ask(1), 0);
  n.finish();
}

TEST(Coalescing, NotWhereWindowsAreSmall) {
  Coalesced n(1.25e9, 200 << 10);
  n.broadcast(kBlockBytes);
  n.until(kBlockBytes / 2);
  EXPECT_EQ(n.ask(1), 0);
  n.finish();
}

TEST(Coalescing, PausesShortenOnAFasterLinkUntilThereIsNone) {
  for (const double rate : {4e9, 12.5e9}) {
    Coalesced n(rate);
    n.broadcast(4 * kBlockBytes);
    n.until(kBlockBytes);
    const Nanos pause = n.ask(1, 50 * kMicro);
    if (rate < 5e9) {
      EXPECT_GE(pause, 50 * kMicro);
      EXPECT_LE(pause, 75 * kMicro);
    } else {
      EXPECT_EQ(pause, 0);
    }
    n.finish();
  }
}

}  // namespace
}  // namespace mcast::test
