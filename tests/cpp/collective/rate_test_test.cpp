// Multicast that reaches all ranks but is slower than unicast, as behind the gateways of clouds.
// The group detects this, moves to the ring, stays there only if that is faster, and checks again.
#include "collective/rate_test.h"

#include <gtest/gtest.h>

#include <map>

#include "support/program.h"

namespace mcast::test {
namespace {

constexpr Member kPaced = 4;
constexpr size_t kPacedBlock = 256 * 1024;
constexpr uint64_t kTrainBytes = 512u << 10;
constexpr double kGatewayRate = 0.4e6;
constexpr double kLinkRate = 10e6;  // bytes per second

ClusterOptions shaped() {
  ClusterOptions options;
  options.ranks = kPaced;
  options.net.rate = options.net.stream_rate = kLinkRate;
  options.net.receive_budget = 4u << 20;
  options.group.arity = 2;
  options.group.multicast.rate_test = kTrainBytes;
  return options;
}

// A gateway that drops the multicast of a sender beyond `rate` bytes per second.
class Gateway {
 public:
  Gateway(Cluster& cluster, double rate) : cluster_(cluster), rate_(rate) {
    cluster.net().set_datagram_hook([this](size_t from, size_t to, ConstBytes datagram) {
      return from == to || pass(from, to, datagram.size()) ? SimNetwork::Verdict::kPass
                                                           : SimNetwork::Verdict::kDrop;
    });
  }
  ~Gateway() { open(); }
  void open() { cluster_.net().set_datagram_hook({}); }

 private:
  static constexpr double kBurst = 16 * 1024;
  struct Bucket {
    double tokens = kBurst;
    Nanos filled = 0;
    bool passes = true;
  };
  // Decides once for all receivers of a datagram, at the first of them.
  bool pass(size_t from, size_t to, size_t bytes) {
    Bucket& bucket = buckets_[from];
    if (to != (from == 0 ? 1u : 0u)) return bucket.passes;
    const Nanos now = cluster_.net().now();
    const double since = static_cast<double>(now - bucket.filled) / kSecond;
    bucket.tokens = std::min(kBurst, bucket.tokens + since * rate_);
    bucket.filled = now;
    bucket.passes = bucket.tokens >= static_cast<double>(bytes);
    if (bucket.passes) bucket.tokens -= static_cast<double>(bytes);
    return bucket.passes;
  }

  Cluster& cluster_;
  double rate_;
  std::map<size_t, Bucket> buckets_;
};

class Job {
 public:
  explicit Job(Cluster& cluster) : cluster_(cluster) {}

  // Runs all-gathers one after the other until `until`, at most `most`. The last rank calls `late`
  // after the others.
  template <typename Until>
  void run(Until until, int most, Nanos late = 0) {
    for (int i = 0; i < most && !until(); i++, id_++) {
      Runs runs;
      for (Member r = 0; r < kPaced - 1; r++)
        runs.push_back(cluster_.allgather(r, kPacedBlock, id_));
      if (late > 0) cluster_.run_for(late);
      runs.push_back(cluster_.allgather(kPaced - 1, kPacedBlock, id_));
      ASSERT_TRUE(cluster_.run([&] { return all_done(runs); }, 300 * kSecond)) << id_;
      expect_good(runs, kPaced);
      cluster_.run_for(kMilli);
    }
  }
  void run(int operations, Nanos late = 0) {
    run([] { return false; }, operations, late);
  }
  uint64_t switches() const { return cluster_.total(Counter::path_switches); }
  uint64_t tests() const { return cluster_.total(Counter::rate_tests); }
  std::string reason(Member r = 0) const { return cluster_.group(r).core().path_reason(); }

 private:
  Cluster& cluster_;
  uint64_t id_ = 1;
};

TEST(RateTest, MulticastThatIsLimitedIsLeftForTheRing) {
  Cluster cluster(shaped());
  Gateway gateway(cluster, kGatewayRate);
  Job job(cluster);
  job.run([&] { return job.switches() > 0; }, 100);
  job.run(16);
  EXPECT_EQ(job.switches(), kPaced) << "and it stays there: the ring stands its trial";
  EXPECT_EQ(job.tests(), kPaced);
  EXPECT_EQ(cluster.total(Counter::rate_test_bytes), kPaced * kTrainBytes) << "what a test costs";
  EXPECT_GT(cluster.total(Counter::ring_bytes_sent), 0u);
  for (Member r = 0; r < kPaced; r++) {
    EXPECT_NE(job.reason(r).find("multicast moves"), std::string::npos) << job.reason(r);
    EXPECT_NE(job.reason(r).find("MB/s, unicast"), std::string::npos) << job.reason(r);
  }
  EXPECT_LE(cluster.spins(), 3u);
}

TEST(RateTest, FromTheRingItLooksAgainAndStaysWhereItIsFaster) {
  Cluster cluster(shaped());
  Gateway gateway(cluster, kGatewayRate);
  Job job(cluster);
  job.run([&] { return job.switches() > 0; }, 100);
  job.run(16);
  ASSERT_EQ(job.switches(), kPaced);
  cluster.run_for(RateTest::kRest);
  // Still limited: one try, and back to the ring.
  job.run([&] { return job.switches() == 3 * kPaced; }, 200);
  ASSERT_EQ(job.switches(), 3 * kPaced) << job.reason();
  EXPECT_EQ(job.tests(), 2 * kPaced);
  job.run(16);
  cluster.run_for(RateTest::kRest);
  gateway.open();
  job.run([&] { return job.switches() == 4 * kPaced; }, 200);
  EXPECT_NE(job.reason().find("to see whether multicast is faster now"), std::string::npos);
  job.run(24);
  EXPECT_EQ(job.switches(), 4 * kPaced) << job.reason();
}

TEST(RateTest, PathsThatAreAsFastStayAndAreNotComparedAgainSoon) {
  Cluster cluster(shaped());
  Job job(cluster);
  job.run([&] { return job.tests() > 0; }, 200);
  ASSERT_EQ(job.tests(), kPaced) << "else nothing is compared here";
  job.run(24);
  EXPECT_EQ(job.tests(), kPaced);
  EXPECT_EQ(job.switches(), 0u) << job.reason();
  cluster.run_for(RateTest::kRest);
  job.run([&] { return job.tests() > kPaced; }, 200);
  EXPECT_EQ(job.tests(), 2 * kPaced);
  EXPECT_EQ(job.switches(), 0u) << job.reason();
}

TEST(RateTest, ALateRankCostsOneTrialOfTheRing) {
  Cluster cluster(shaped());
  Job job(cluster);
  const Nanos late = 300 * kMilli;
  job.run([&] { return job.switches() == 2 * kPaced; }, 60, late);
  ASSERT_EQ(job.switches(), 2 * kPaced) << job.reason();
  EXPECT_NE(job.reason().find("the ring moves"), std::string::npos) << job.reason();
  job.run(20, late);
  cluster.run_for(RateTest::kRest);
  job.run(20, late);
  EXPECT_EQ(job.switches(), 2 * kPaced) << "twice the rest after a trial that failed";
}

TEST(RateTest, NoTestRunsWithoutAPossibleGainOrIfDisabled) {
  ClusterOptions near = shaped(), off = shaped();
  near.group.multicast.link_rate = static_cast<uint64_t>(8 * kLinkRate);
  off.group.multicast.rate_test = 0;
  for (const ClusterOptions& options : {near, off}) {
    Cluster cluster(options);
    Job job(cluster);
    job.run(24);
    EXPECT_EQ(job.tests(), 0u);
    EXPECT_EQ(cluster.total(Counter::rate_test_bytes), 0u);
  }
}

// Operations do not wait for a rate test that a rank delays; the test is repeated later.
TEST(RateTest, ARankThatIsStoppedMeanwhile) {
  Cluster cluster(shaped());
  Gateway gateway(cluster, kGatewayRate);
  Job job(cluster);
  job.run([&] { return job.tests() > 0; }, 100);
  cluster.pause(2, true);
  cluster.run_for(RateTest::kHold + kSecond);
  cluster.pause(2, false);
  job.run(4);
  cluster.run_for(RateTest::kRest);
  job.run([&] { return job.switches() > 0; }, 100);
  EXPECT_EQ(job.switches(), kPaced) << job.reason();
  EXPECT_LE(cluster.spins(), 3u);
}

TEST(RateTest, FramesOutOfPlaceAreCounted) {
  Cluster cluster(shaped());
  const auto send = [&](size_t from, size_t to, wire::FrameType type, uint32_t argument) {
    std::vector<std::byte> frame(wire::kFrameHeader);
    const uint64_t tag = cluster.group(0).core().params().tag;
    wire::write_frame_header(frame.data(), {type, 0, static_cast<Member>(from), tag, 1, argument},
                             {});
    cluster.net().inject_frame(from, to, Channel::kControl, frame);
  };
  send(3, 0, wire::FrameType::kRate, 7);       // not its child
  send(1, 0, wire::FrameType::kRateTrain, 1);  // not its predecessor
  send(1, 0, wire::FrameType::kSwitch, 2);     // not its parent
  cluster.run_for(10 * kMilli);
  EXPECT_EQ(cluster.total(Counter::malformed), 3u);
  send(3, 0, wire::FrameType::kRateTrain, 1);  // of no round
  cluster.run_for(10 * kMilli);
  EXPECT_EQ(cluster.total(Counter::malformed), 3u);
  EXPECT_EQ(cluster.total(Counter::rate_tests), 0u);
}

}  // namespace
}  // namespace mcast::test
