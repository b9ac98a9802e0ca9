// Guarded worlds: the same bytes at all ranks in every mode, the same run for the same seed, keys
// that change within it, a wrong secret that all ranks name, guarded aggregators, and an
// experiment's report of the guard's cost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "crypto/library.h"
#include "sim/swarm/generate.h"
#include "sim/swarm/laws.h"
#include "sim/swarm/runner.h"
#include "sim/world/experiment.h"
#include "sim/world/report.h"
#include "sim/world/world.h"
#include "support/errors.h"
#include "support/world.h"

namespace mcast::test {
namespace {

using sim::Operation;
using testing::HasSubstr;
using wire::Kind;

class GuardedWorld : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(crypto::load_library().ok()); }

  static sim::WorldSpec guarded(const std::string& mode, uint32_t hosts = 5) {
    sim::WorldSpec spec = world_of(hosts, "star");
    spec.config.security = mode;
    spec.guarding.epochs.packets = 5;
    return spec;
  }
  static Operation some(Kind kind, uint64_t id, size_t bytes) {
    Operation op;
    op.kind = kind;
    op.id = id;
    op.bytes = bytes;
    return op;
  }
  // Runs one operation of each kind, and larger ones of the kinds that have streams.
  static void carry_out(sim::World& world) {
    const auto g = world.make_group();
    ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
    for (Member m = 0; m < world.size(g); m++) {
      ASSERT_TRUE(world.making(g, m).ok()) << world.making(g, m).message();
    }
    uint64_t id = 0;
    Outcomes all;
    for (const size_t bytes : {size_t{100}, size_t{400'000}}) {
      for (const Kind kind : {Kind::kBroadcast, Kind::kAllgather, Kind::kReduceScatter,
                              Kind::kAllreduce, Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
        for (auto& one : world.post_all(g, some(kind, ++id, bytes))) all.push_back(one);
      }
    }
    EXPECT_TRUE(world.run([&] { return all_over(all); }, 120 * kSecond));
    for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
    world.close(g, 10 * kSecond);
    EXPECT_TRUE(world.run([&] { return world.closed(g); }, 60 * kSecond));
    EXPECT_LE(world.most_spins(), 3u);
    (void)world.run([] { return false; }, 600 * kSecond);
    EXPECT_TRUE(world.standstill());
  }
};

TEST_F(GuardedWorld, BytesAreTheSameInEveryMode) {
  std::map<std::string, uint64_t> hash;
  for (const char* mode : {"off", "auth", "sealed"}) {
    for (const double loss : {0.0, 1e-3}) {
      SCOPED_TRACE(std::string(mode) + ", loss " + std::to_string(loss));
      sim::World world(guarded(mode));
      lose(world, loss);
      carry_out(world);
      const sim::GuardTotals cost = world.guard_totals();
      if (loss == 0) hash[mode] = world.trace_hash();
      if (std::string(mode) == "off") {
        EXPECT_EQ(cost.records + cost.handshakes, 0u);
        continue;
      }
      EXPECT_GT(cost.epochs, 2u);
      EXPECT_EQ(cost.record_bytes, 20 * cost.records);
      EXPECT_GT(cost.handshake_bytes, cost.handshakes);
    }
  }
  EXPECT_NE(hash["off"], hash["auth"]);
  EXPECT_EQ(hash["auth"], hash["sealed"]) << "what is encrypted takes no more and no less";
}

TEST_F(GuardedWorld, TheSameSpecificationIsTheSameRun) {
  const auto run = [](uint64_t seed) {
    sim::WorldSpec spec = guarded("sealed");
    spec.seed = spec.net.seed = spec.net.fabric->links.seed = seed;
    sim::World world(spec);
    lose(world, 0.01);
    carry_out(world);
    const sim::GuardTotals cost = world.guard_totals();
    return std::pair(world.trace_hash(), cost.records * 1000 + cost.handshakes);
  };
  const auto one = run(1);
  EXPECT_EQ(one, run(1));
  EXPECT_NE(one.first, run(2).first);
}

TEST_F(GuardedWorld, SubgroupsAndRailsAreGuarded) {
  for (const bool rails : {false, true}) {
    sim::WorldSpec spec = guarded("sealed", 3);
    spec.ranks = rails ? 2 : 1;
    spec.config.subgroups = rails ? 1 : 2;
    sim::World world(spec);
    const auto g = world.make_group();
    ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
    EXPECT_FALSE(world.parts(g).empty());
    const Outcomes all = world.post_all(g, some(Kind::kBroadcast, 1, 5 << 20));
    EXPECT_TRUE(world.run([&] { return all_over(all); }, 120 * kSecond));
    for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
  }
}

TEST_F(GuardedWorld, AnotherSecretIsNamedOnAllRanks) {
  sim::WorldSpec spec = guarded("sealed");
  spec.guarding.secret = [](uint32_t rank) { return rank == 3 ? 2 : 1; };
  sim::World world(spec);
  const Nanos begin = world.now();
  const auto g = world.make_group();
  ASSERT_TRUE(world.run([&] { return world.made(g); }, kSecond));
  EXPECT_LT(world.now() - begin, kSecond);
  for (Member m = 0; m < world.size(g); m++) {
    EXPECT_TRUE(
        is_error(world.making(g, m), ErrorId::secret_differs, {{"rank", "3"}, {"other", "0"}}));
  }
}

TEST_F(GuardedWorld, AggregatorsFoldWithTheirOwnSecret) {
  for (const char* mode : {"auth", "sealed"}) {
    sim::WorldSpec spec = world_of(8, "star");
    spec.hosts = 5;
    spec.config.security = mode;
    spec.config.incast = 128 << 10;
    spec.guarding.epochs.packets = 60;
    for (uint32_t i = 0; i < 3; i++) {
      sim::AggregatorSpec one;
      one.host = 5 + i;
      spec.aggregators.push_back(one);
    }
    sim::World world(spec);
    const auto g = world.make_group();
    ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
    const Outcomes all = world.post_all(g, some(Kind::kAllreduce, 1, 3'000'000));
    ASSERT_TRUE(world.run([&] { return all_over(all); }, 120 * kSecond));
    for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
    EXPECT_GT(world.total(g, Counter::agg_bytes_sent), 1'000'000u);
  }
}

// Compares an experiment's report of the cost with the bytes of the same experiment without a
// guard.
TEST_F(GuardedWorld, ExperimentsTellTheCost) {
  const auto run = [](const std::string& words) {
    const auto spec =
        sim::ExperimentSpec::parse("hosts=4 op=all_reduce size=4M algorithm=mcast " + words);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    auto result = sim::run_experiment(*spec);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return std::pair(*spec, *result);
  };
  const auto [clear_spec, clear] = run("");
  EXPECT_FALSE(clear.guard.has_value());
  EXPECT_EQ(sim::report_json(clear_spec, clear, {}).find("\"security\""), std::string::npos);
  for (const char* mode : {"auth", "sealed"}) {
    const auto [spec, result] = run(std::string("security=") + mode);
    ASSERT_TRUE(result.guard.has_value());
    const sim::GuardCost& cost = *result.guard;
    EXPECT_EQ(cost.datagram_bytes, 24 * cost.datagrams);
    EXPECT_EQ(cost.record_bytes, 20 * cost.records);
    EXPECT_GT(cost.datagrams, 500u);
    EXPECT_GT(cost.records, 100u);
    EXPECT_GT(cost.handshake_bytes, 168u * 6);
    EXPECT_THAT(sim::report_json(spec, result, {}), HasSubstr("\"security\":{\"datagrams\":"));
    constexpr auto kData = static_cast<size_t>(sim::TrafficClass::kData);
    constexpr auto kReduce = static_cast<size_t>(sim::TrafficClass::kReduce);
    const auto& data = result.sent[kData];
    EXPECT_EQ(data.packets, clear.sent[kData].packets);
    EXPECT_EQ(data.bytes, clear.sent[kData].bytes + 24 * data.packets);
    // Bytes of streams without packet headers. Connections begin when contributions need them.
    const uint32_t header = sim::framing_of(spec).stream_overhead;
    const auto payload = [&](const sim::OpResult& r) {
      return r.sent[kReduce].bytes - r.sent[kReduce].packets * header;
    };
    const uint64_t frames = result.ranks_sent[kReduce].all.frames;
    EXPECT_EQ(frames, clear.ranks_sent[kReduce].all.frames);
    EXPECT_GE(payload(result), payload(clear) + 20 * frames);
    // A few segments are sent again: the sender knows its round trip only from the handshake,
    // without load.
    EXPECT_LE(payload(result), payload(clear) * 101 / 100);
  }
}

TEST_F(GuardedWorld, PlansMayBeGuardedAndReadBackTheSame) {
  size_t found = 0;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    const sim::Plan plan = sim::generate(seed);
    if (!sim::is_guarded(plan)) continue;
    found++;
    EXPECT_THAT(sim::print(plan), HasSubstr("set security="));
    const auto again = sim::parse(sim::print(plan));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(sim::print(*again), sim::print(plan));
  }
  EXPECT_GT(found, 4u);
  EXPECT_LT(found, 30u);
  for (const char* setting : {"secret_file=/x", "trust_store=1"}) {
    EXPECT_FALSE(sim::parse("world\nset " + std::string(setting) + "\ngroup ranks=0,1\n").ok());
  }
}

// A plan's invariants hold and its run repeats, in any mode.
TEST_F(GuardedWorld, APlanKeepsTheLawsInEveryMode) {
  const std::string plan =
      "world seed=3 hosts=4 rate=1.25e+09\n"
      "group ranks=0,1,2,3\n"
      "op kind=all_reduce bytes=200000 element=int32\n"
      "op kind=broadcast bytes=300000 root=1\n"
      "op kind=all_to_all bytes=50000\n"
      "fault what=drop rate=0.05\n"
      "fault what=corrupt rate=0.02 for=20ms\n"
      "fault what=pause rank=2 at=1ms for=50ms\n";
  for (const char* mode : {"off", "auth", "sealed"}) {
    SCOPED_TRACE(mode);
    const auto read = sim::parse(plan + "set security=" + mode + "\n");
    ASSERT_TRUE(read.ok()) << read.status().message();
    const sim::RunEnd run = sim::carry_out(*read);
    for (const auto& finding : sim::break_laws(*read, run)) {
      ADD_FAILURE() << finding.law << ": " << finding.text;
    }
    EXPECT_EQ(run.hash, sim::carry_out(*read).hash);
  }
}

}  // namespace
}  // namespace mcast::test
