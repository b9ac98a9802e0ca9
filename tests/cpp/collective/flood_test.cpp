// A sender floods a multicast address. Operations stay exact, the group moves to the ring and
// leaves the address, and returns after the flood. Runs on both lanes, guarded and not.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using Message = std::vector<std::byte>;

// A sender in the same network that multicasts noise to the address of the groups.
class Flooder {
 public:
  static constexpr Nanos kEvery = 10 * kMilli;
  Flooder(Cluster& cluster, size_t each, Message noise = Message(40, std::byte{0x5a}),
          uint16_t port = 7000)
      : cluster_(cluster), each_(each), noise_(std::move(noise)), port_(port) {
    medium_ = cluster.net().attach();
    tick();
  }
  void stop() { each_ = 0; }

 private:
  void tick() {
    Datagram& out = medium_->datagram();
    for (size_t i = 0; i < each_; i++) {
      const Bytes lent = out.lend({1, port_, false}, noise_.size());
      if (lent.empty()) break;
      std::copy(noise_.begin(), noise_.end(), lent.begin());
      out.commit(lent.size());
    }
    out.flush();
    cluster_.at(cluster_.now() + kEvery, [this] { tick(); });
  }
  Cluster& cluster_;
  size_t each_;
  Message noise_;
  uint16_t port_;
  std::unique_ptr<SimTransport> medium_;
};

class Flood : public testing::TestWithParam<std::tuple<uint8_t, crypto::Mode>> {
 protected:
  static constexpr uint32_t kRanks = 3;
  static constexpr size_t kFlood = 100;  // datagrams in 10 ms

  ClusterOptions options() const {
    ClusterOptions o;
    o.ranks = kRanks;
    o.group.lane = std::get<0>(GetParam());
    o.security = std::get<1>(GetParam());
    o.group.arity = 2;
    return o;
  }
  // Drops nine of ten data datagrams, as where a flood fills the queues.
  void lose_data(Cluster& c) {
    c.net().set_datagram_hook([this](size_t from, size_t, ConstBytes d) {
      const bool data = from < kRanks && (static_cast<uint8_t>(d[6]) & 15) == 1;
      if (data && from == 0) sent_.assign(d.begin(), d.end());
      return data && loss_ && rng_.chance(0.9) ? SimNetwork::Verdict::kDrop
                                               : SimNetwork::Verdict::kPass;
    });
  }
  // Runs operations one after the other until `until()` or until this time has passed. All must be
  // exact.
  template <typename Until>
  void work(Cluster& c, Until until, Nanos limit, size_t g = 0) {
    const Nanos end = c.now() + limit;
    while (!until() && c.now() < end) {
      Runs runs;
      id_++;
      for (Member r = 0; r < kRanks; r++) {
        if (std::get<0>(GetParam()) == 1 && id_ % 2 == 0 && g == 0) {
          runs.push_back(c.reduction(r, wire::Kind::kAllreduce, 0, 60'000, id_));
        } else {
          runs.push_back(c.allgather(r, 20'000, id_, kNever, g));
        }
      }
      ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
      expect_good(runs, kRanks);
      c.run_for(100 * kMilli);
    }
  }
  static uint64_t heard(Cluster& c) {
    uint64_t sum = 0;
    for (Member r = 0; r < kRanks; r++) {
      sum += static_cast<Port&>(c.group(r)).received().useless;
    }
    return sum;
  }

  Rng rng_{5};
  Message sent_;  // by rank 0, of the last operation
  bool loss_ = true;
  uint64_t id_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Lanes, Flood,
                         testing::Combine(testing::Values(uint8_t{0}, uint8_t{1}),
                                          testing::Values(crypto::Mode::kOff, crypto::Mode::kAuth,
                                                          crypto::Mode::kSealed)),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param) == 1 ? "reduce" : "multicast") +
                                  "_" + crypto::mode_name(std::get<1>(p.param));
                         });

TEST_P(Flood, TheGroupLeavesTheAddressForTheRing) {
  Cluster c(options());
  lose_data(c);
  Flooder flooder(c, kFlood);
  const auto left = [&] { return c.total(Counter::floods_left) == kRanks; };
  work(c, left, 30 * kSecond);
  ASSERT_TRUE(left());
  EXPECT_EQ(c.total(Counter::path_switches), kRanks);
  EXPECT_EQ(c.total(Counter::path_checks), 0u) << "a probe would have come through";
  for (Member r = 0; r < kRanks; r++) {
    EXPECT_NE(c.group(r).core().path_reason().find("is flooded"), std::string::npos);
  }
  const uint64_t before = heard(c);
  work(
      c, [] { return false; }, kSecond);
  EXPECT_LT(heard(c), before + 100) << "the network does not bring it any more";
  EXPECT_GT(c.total(Counter::ring_bytes_sent), 0u);
}

// The flood goes to a port on which no socket listens: the lane does not see it, the host counts
// it.
TEST_P(Flood, AtAnotherPortOfTheAddressToo) {
  Cluster c(options());
  lose_data(c);
  bool on = true;
  std::function<void()> pour = [&] {
    for (Member r = 0; r < kRanks && on; r++) c.net().flood_beside(r, kFlood);
    c.at(c.now() + Flooder::kEvery, pour);
  };
  pour();
  const auto left = [&] { return c.total(Counter::floods_left) == kRanks; };
  work(c, left, 30 * kSecond);
  ASSERT_TRUE(left());
  const auto asked = [&] { return c.total(Counter::path_checks) >= 2 * kRanks; };
  work(c, asked, 60 * kSecond);
  ASSERT_TRUE(asked());
  EXPECT_EQ(c.total(Counter::path_switches), kRanks) << "it goes on";
  on = loss_ = false;
  const auto back = [&] { return c.total(Counter::path_switches) == 2 * kRanks; };
  work(c, back, 60 * kSecond);
  EXPECT_TRUE(back());
}

// Datagrams that arrive at a host whether it has joined or not say nothing about the address.
TEST_P(Flood, TrafficToAllHostsDoesNotPreventTheReturn) {
  Cluster c(options());
  lose_data(c);
  std::function<void()> pour = [&] {
    for (Member r = 0; r < kRanks; r++) c.net().flood_beside(r, kFlood, true);
    c.at(c.now() + Flooder::kEvery, pour);
  };
  pour();
  const auto left = [&] { return c.total(Counter::floods_left) == kRanks; };
  work(c, left, 30 * kSecond);
  ASSERT_TRUE(left());
  loss_ = false;
  const auto back = [&] { return c.total(Counter::path_switches) == 2 * kRanks; };
  work(c, back, 60 * kSecond);
  EXPECT_TRUE(back());
  work(
      c, [] { return false; }, 12 * kSecond);
  EXPECT_TRUE(back()) << "it does no harm";
}

// The flood repeats a genuine datagram: of an operation that is over, and for rank 0 its own.
TEST_P(Flood, RepeatedMemberDatagramsCountAsFlood) {
  Cluster c(options());
  lose_data(c);
  work(
      c, [&] { return !sent_.empty(); }, kSecond);
  const uint64_t own = c.group(0).counters().get(Counter::own_echo);
  Flooder flooder(c, kFlood, sent_);
  const auto left = [&] { return c.total(Counter::floods_left) == kRanks; };
  work(c, left, 30 * kSecond);
  EXPECT_TRUE(left()) << c.total(Counter::floods_left);
  EXPECT_GT(c.group(0).counters().get(Counter::own_echo), own + 1000);
}

// Data of an operation that is not posted yet is kept once; data of one that is over is dropped.
TEST_P(Flood, RepetitionsAreOfNoUse) {
  constexpr int kTimes = 100;
  Cluster c(options());
  loss_ = false;
  lose_data(c);
  const auto received = [&] { return static_cast<Port&>(c.group(1)).received(); };
  const auto expect_useless = [&] {
    ASSERT_FALSE(sent_.empty());
    const Port::Received before = received();
    sent_.back() ^= std::byte{1};  // noticed if it is verified
    for (int i = 0; i < kTimes; i++) c.net().inject(1, sent_);
    c.run_for(10 * kMilli);
    EXPECT_EQ(c.total(Counter::corrupt), 0u);
    EXPECT_EQ(received().verified, before.verified);
    EXPECT_EQ(received().useless, before.useless + kTimes);
  };
  work(
      c, [&] { return !sent_.empty(); }, kSecond);
  expect_useless();
  sent_.clear();
  Runs runs = {c.allgather(0, 2'000, 77)};
  c.run_for(10 * kMilli);
  expect_useless();
  for (Member r = 1; r < kRanks; r++) runs.push_back(c.allgather(r, 2'000, 77));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
  expect_good(runs, kRanks);
}

TEST_P(Flood, WhileItGoesOnTheGroupStaysOnTheRingAndThenComesBack) {
  Cluster c(options());
  lose_data(c);
  Flooder flooder(c, kFlood);
  // Takes 5 s, and two rounds of path checks, after 5 s and after 10 s more.
  const auto asked = [&] { return c.total(Counter::path_checks) >= 2 * kRanks; };
  work(c, asked, 60 * kSecond);
  ASSERT_TRUE(asked());
  EXPECT_EQ(c.total(Counter::path_switches), kRanks);
  flooder.stop();
  loss_ = false;
  const auto back = [&] { return c.total(Counter::path_switches) == 2 * kRanks; };
  work(c, back, 60 * kSecond);
  ASSERT_TRUE(back());
  const uint64_t by_ring = c.total(Counter::ring_bytes_sent);
  const uint64_t repaired = c.total(Counter::repair_chunks_received);
  work(
      c, [] { return false; }, kSecond);
  EXPECT_EQ(c.total(Counter::ring_bytes_sent), by_ring);
  EXPECT_EQ(c.total(Counter::repair_chunks_received), repaired) << "all hear the address again";
}

TEST_P(Flood, OneThatDoesNoHarmAndLossAloneChangeNothing) {
  for (const bool flooded : {true, false}) {
    Cluster c(options());
    loss_ = !flooded;
    lose_data(c);
    Flooder flooder(c, flooded ? kFlood : 5);
    work(
        c, [] { return false; }, 12 * kSecond);
    EXPECT_EQ(c.total(Counter::path_switches), 0u) << flooded;
    EXPECT_EQ(c.total(Counter::floods_left), 0u);
  }
}

// The group is on the ring for another reason. Noise too weak to move it there must not keep it
// there.
TEST_P(Flood, HarmlessNoiseDoesNotPreventTheReturn) {
  Cluster c(options());
  Flooder flooder(c, 5);
  const auto switched = [&c](uint64_t times) {
    return [&c, times] { return c.total(Counter::path_switches) == times * kRanks; };
  };
  c.net().block_multicast(0, 2);
  work(c, switched(1), 30 * kSecond);
  ASSERT_TRUE(switched(1)());
  c.net().block_multicast(0, 2, false);
  work(c, switched(2), 30 * kSecond);
  EXPECT_TRUE(switched(2)());
  EXPECT_EQ(c.total(Counter::floods_left), 0u);
}

// Ten groups of other members over the same hosts, as in a mesh, and an overloaded rank that gets
// most of its data by repair. The groups send to ports of their own.
TEST_P(Flood, GroupsBesideThisOneAreNoFloodWhereItLoses) {
  Cluster c(options());
  lose_data(c);
  wire::DatagramHeader h;
  h.group_tag = 0xdeadbeef;
  Message theirs(wire::kDatagramHeader + 1000);
  wire::write_datagram(theirs, h, Message(1000));
  std::vector<std::unique_ptr<Flooder>> groups;
  for (uint16_t g = 1; g <= 10; g++) {
    groups.push_back(
        std::make_unique<Flooder>(c, kFlood / 2, theirs, static_cast<uint16_t>(7000 + 2 * g)));
  }
  work(
      c, [] { return false; }, 12 * kSecond);
  EXPECT_GT(c.total(Counter::repair_chunks_received), 0u);
  EXPECT_EQ(c.total(Counter::path_switches), 0u);
  EXPECT_EQ(c.total(Counter::floods_left), 0u);
  for (Member r = 0; r < kRanks; r++) EXPECT_EQ(c.lane(r).foreign() + c.lane(r).neighbour(), 0u);
}

TEST_P(Flood, CostsOnlyTimeIfTheRingIsForbidden) {
  ClusterOptions o = options();
  o.group.multicast.required = true;
  Cluster c(o);
  lose_data(c);
  Flooder flooder(c, kFlood);
  work(
      c, [] { return false; }, 12 * kSecond);
  EXPECT_EQ(c.total(Counter::path_switches), 0u);
}

// Groups over the same hosts share an address and have different ports. While one group stays on
// the address, the flood of the other arrives.
TEST_P(Flood, AnIdleGroupLeavesTheAddressTogetherWithTheOther) {
  ClusterOptions o = options();
  o.one_address = true;
  Cluster c(o);
  const size_t other = c.add_group(o.group);
  lose_data(c);
  Flooder flooder(c, kFlood);
  const auto left = [&] {
    return c.total(Counter::floods_left) == kRanks &&
           c.total(Counter::floods_left, other) == kRanks;
  };
  work(c, left, 30 * kSecond);
  ASSERT_TRUE(left());
  const uint64_t before = heard(c);
  work(
      c, [] { return false; }, kSecond);
  EXPECT_LT(heard(c), before + 100);
  flooder.stop();
  loss_ = false;
  const auto back = [&] { return c.total(Counter::path_switches, other) == 2 * kRanks; };
  work(c, back, 60 * kSecond, other);
  EXPECT_TRUE(back()) << "when it has something to do";
}

// A lane that reads noise continuously still detects losses.
TEST_P(Flood, LossesAreFoundThoughTheSocketIsNeverEmpty) {
  ClusterOptions o = options();
  o.net.receive_budget = 64 << 10;
  Cluster c(o);
  const std::vector<std::byte> noise(o.net.receive_budget + 1, std::byte{0x5a});
  std::function<void()> pour = [&] {
    for (Member r = 0; r < kRanks; r++) c.net().inject(r, noise);
    c.at(c.now() + 1, pour);  // at the next poll
  };
  // Drops the last chunk of each block: no later chunk reveals the gap.
  c.net().set_datagram_hook([](size_t, size_t, ConstBytes d) {
    const bool data = (static_cast<uint8_t>(d[6]) & 15) == 1;
    return data && (static_cast<uint8_t>(d[7]) & 2) != 0 ? SimNetwork::Verdict::kDrop
                                                         : SimNetwork::Verdict::kPass;
  });
  pour();
  Runs runs;
  for (Member r = 0; r < kRanks; r++) runs.push_back(c.allgather(r, 20'000, 1));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  expect_good(runs, kRanks);
  EXPECT_GT(c.total(Counter::cutoffs), 0u);
}

}  // namespace
}  // namespace mcast::test
