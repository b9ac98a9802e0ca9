// Lanes that are polled only for arrived data and due deadlines, as their threads poll them. (Other
// tests of the simulator poll all lanes whenever anything happens.) A lane's deadline must cover
// everything that a state machine waits for; otherwise it happens too late or never.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/program.h"

namespace mcast::test {
namespace {

ClusterOptions sleepy(uint32_t n, bool ring = false) {
  ClusterOptions o = ranks(n, ring);
  o.sleepy = true;
  return o;
}

// Posts one operation of each kind, small or in many chunks.
Runs one_of_each(Cluster& c, size_t bytes) {
  using wire::Kind;
  Runs runs;
  const auto add = [&](const Runs& more) { runs.insert(runs.end(), more.begin(), more.end()); };
  uint64_t id = 1;
  add(broadcast_all(c, 1, bytes, id++));
  add(allgather_all(c, bytes, id++));
  for (const Kind kind : {Kind::kReduceScatter, Kind::kAllreduce, Kind::kReduce}) {
    for (Member r = 0; r < c.size(); r++) runs.push_back(c.reduction(r, kind, 0, bytes, id));
    id++;
  }
  add(barrier_all(c));
  return runs;
}

struct Case {
  uint32_t ranks;
  size_t bytes;
  double drop;
  bool ring;
};

class Sleepy : public testing::TestWithParam<Case> {};

TEST_P(Sleepy, EveryKindEndsInTime) {
  const auto [n, bytes, drop, ring] = GetParam();
  ClusterOptions o = sleepy(n, ring);
  o.net.faults.drop = drop;
  Cluster c(o);
  const Nanos before = c.now();
  finish(c, one_of_each(c, bytes));
  // A repair takes milliseconds; a longer time means that a lane was only polled because of others.
  EXPECT_LT(c.now() - before, 2 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Sleepy,
                         testing::Values(Case{2, 4, 0, false}, Case{2, 200'000, 0, false},
                                         Case{3, 900, 0.2, false}, Case{5, 60'000, 0.1, false},
                                         Case{8, 9'000, 0.02, false}, Case{3, 30'000, 0, true},
                                         Case{4, 1'000, 0.3, true}));

TEST(SleepyLanes, ATimeLimitIsKeptToTheMillisecond) {
  ClusterOptions o = sleepy(3);
  o.group.liveness_limit = 80 * kSecond;  // pings would poll it too late
  Cluster c(o);
  Runs runs;
  for (Member r = 1; r < 3; r++) runs.push_back(c.allgather(r, 5000, 1, 300 * kMilli));
  const Nanos posted = c.now();
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond)) << "hangs";
  for (const auto& r : runs) {
    EXPECT_EQ(r->status.code(), Code::kTimeout) << r->status.to_string();
    EXPECT_LE(r->done_at - posted, 310 * kMilli);
  }
}

// A root collects requests for a moment, so its repeated multicast is due when nothing arrives. The
// tail of a stream is such a case: everything else has arrived.
TEST(SleepyLanes, RepeatedMulticastLeavesAtOnce) {
  ClusterOptions o = sleepy(3);
  o.net.jitter = 0;
  o.group.liveness_limit = 80 * kSecond;  // pings would poll it too late
  o.group.alpha = 40 * kMilli;            // and so would repeated requests
  Cluster c(o);
  constexpr Chunk kLast = 283;
  Nanos asked = kNever, again = kNever;
  std::set<Chunk> sent;
  c.net().set_datagram_hook([&](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    if (from == to || !is_data(d, h)) return SimNetwork::Verdict::kPass;
    if (to == 1 && !sent.insert(h.chunk).second) again = std::min(again, c.now());
    const bool lose = h.chunk == kLast && again == kNever;
    return lose ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
  });
  c.net().set_frame_hook([&](size_t, size_t to, Channel, ConstBytes f) {
    wire::FrameHeader h;
    const bool fetch = wire::parse_frame(f, h) && h.type == wire::FrameType::kFetch;
    if (fetch && to == 0 && asked == kNever) asked = c.now();
    return true;
  });
  finish(c, broadcast_all(c, 0, (kLast + 1) * 1408, 1));
  ASSERT_NE(again, kNever);
  EXPECT_LE(again - asked, o.group.alpha / 4 + kMilli);
}

TEST(SleepyLanes, ASilentRankIsNoticedAtTheLimit) {
  Cluster c(sleepy(3));
  c.net().isolate(2);
  c.pause(2, true);
  Runs runs;
  for (Member r = 0; r < 2; r++) runs.push_back(c.broadcast(r, 0, 50'000, 1));
  const Nanos posted = c.now();
  ASSERT_TRUE(c.run([&] { return runs[0]->done(); }, 20 * kSecond)) << "hangs";
  EXPECT_EQ(runs[0]->status.code(), Code::kPeerLost) << runs[0]->status.to_string();
  // The limit counts from the last message, and it is checked at every ping interval.
  EXPECT_LE(runs[0]->done_at - posted, kLiveness + kLiveness / 4);
}

TEST(SleepyLanes, IdleLanesArePolledRarely) {
  Cluster c(sleepy(3));
  finish(c, allgather_all(c, 5000, 1));
  const uint64_t before = c.turns();
  c.run_for(10 * kSecond);
  // Pings and replies, an eighth of the liveness limit apart; no lane is woken needlessly.
  EXPECT_LE(c.turns() - before, 3 * 10 * kSecond / (kLiveness / 8) * 6);
}

}  // namespace
}  // namespace mcast::test
