// Worlds with aggregators. The real state machines serve groups over the network, results equal the
// model's fold bit for bit, NICs carry the bytes of the model, and aggregators may die, end, stop
// and return while operations run.
#include "sim/world/aggregators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/world/world.h"
#include "support/world.h"

namespace mcast::test {
namespace {

using sim::Operation;
using wire::Kind;

constexpr size_t kBytes = 3'000'000;  // takes a link 2.4 ms

// `workers` hosts with one rank each, then the aggregators.
sim::WorldSpec served(uint32_t workers, uint32_t aggregators, const std::string& fold = "rank",
                      const std::string& topology = "star") {
  sim::WorldSpec spec = world_of(workers + aggregators, topology);
  spec.hosts = workers;
  spec.config.fold = fold;
  spec.config.incast = 128 << 10;  // small segments, so that few bytes can be dealt
  for (uint32_t i = 0; i < aggregators; i++) {
    sim::AggregatorSpec one;
    one.host = workers + i;
    spec.aggregators.push_back(one);
  }
  return spec;
}

sim::World::GroupId made(sim::World& world) {
  const auto g = world.make_group();
  EXPECT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
  for (Member m = 0; m < world.size(g); m++) {
    EXPECT_TRUE(world.making(g, m).ok()) << world.making(g, m).message();
  }
  return g;
}

Operation all_reduce(uint64_t id, size_t bytes, Element element = Element::kFloat32) {
  Operation op;
  op.kind = Kind::kAllreduce;
  op.id = id;
  op.bytes = bytes;
  op.how = {element, Reduction::kSum, 1};
  return op;
}

void finish(sim::World& world, const Outcomes& all) {
  ASSERT_TRUE(world.run([&] { return all_over(all); }, 120 * kSecond));
  for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
}

void leave(sim::World& world, sim::World::GroupId g) {
  world.close(g, 10 * kSecond);
  EXPECT_TRUE(world.run([&] { return world.closed(g); }, 60 * kSecond));
  EXPECT_LE(world.most_spins(), 3u);
}

uint64_t served_bytes(const sim::World& world, sim::World::GroupId g) {
  return world.total(g, Counter::agg_bytes_sent);
}

TEST(Aggregators, FoldForGroupsBitForBit) {
  for (const char* fold : {"rank", "turn"}) {
    for (const double loss : {0.0, 1e-3}) {
      for (const Element element : {Element::kFloat32, Element::kBFloat16, Element::kInt32}) {
        SCOPED_TRACE(std::string(fold) + ", loss " + std::to_string(loss));
        sim::World world(served(5, 3, fold));
        const auto g = made(world);
        lose(world, loss);
        Outcomes all = world.post_all(g, all_reduce(1, kBytes, element));
        Operation scatter = all_reduce(2, kBytes / 5, element);
        scatter.kind = Kind::kReduceScatter;
        for (auto& one : world.post_all(g, scatter)) all.push_back(one);
        finish(world, all);
        EXPECT_GT(served_bytes(world, g), kBytes / 3);
        for (size_t i = 0; i < 3; i++) {
          const service::Report report = world.aggregators().report(i);
          ASSERT_EQ(report.jobs.size(), 1u);
          EXPECT_EQ(report.jobs[0].stations.at(0).connected, 5u);
          EXPECT_GT(report.jobs[0].stations[0].folded_bytes, kBytes / 16);
        }
        leave(world, g);
        EXPECT_TRUE(
            world.run([&] { return world.aggregators().report(0).jobs.empty(); }, 10 * kSecond));
      }
    }
  }
}

// Bytes that aggregator i has folded; they grow by an operation's while it serves the group.
uint64_t folded(sim::World& world, size_t i) {
  uint64_t bytes = 0;
  for (const auto& job : world.aggregators().report(i).jobs) {
    for (const auto& station : job.stations) bytes += station.folded_bytes;
  }
  return bytes;
}

TEST(Aggregators, OneThatDiesHarmsNobodyAndIsUsedAgain) {
  for (const Nanos when : {100 * kMicro, kMilli, 2 * kMilli}) {
    SCOPED_TRACE(when);
    sim::World world(served(5, 3));
    const auto g = made(world);
    const Outcomes first = world.post_all(g, all_reduce(1, kBytes));
    world.at(world.now() + when, [&] { world.aggregators().kill(1); });
    finish(world, first);
    EXPECT_FALSE(world.aggregators().runs(1));
    finish(world, world.post_all(g, all_reduce(2, kBytes)));
    world.aggregators().start(1);
    EXPECT_EQ(folded(world, 1), 0u);
    // The group asks it again a second after its loss, and the roster takes a moment.
    world.run([] { return false; }, 3 * kSecond);
    finish(world, world.post_all(g, all_reduce(3, kBytes)));
    EXPECT_GT(folded(world, 1), kBytes / 16);
    leave(world, g);
  }
}

TEST(Aggregators, OneThatEndsInOrderIsLeftAndGoes) {
  sim::World world(served(5, 3));
  const auto g = made(world);
  Outcomes all = world.post_all(g, all_reduce(1, kBytes));
  world.at(world.now() + kMilli, [&] { world.aggregators().end(0, 5 * kSecond); });
  finish(world, all);
  for (uint64_t id = 2; id < 6; id++) finish(world, world.post_all(g, all_reduce(id, kBytes / 8)));
  EXPECT_TRUE(world.run([&] { return !world.aggregators().runs(0); }, 4 * kSecond))
      << "its ranks had left it";
  finish(world, world.post_all(g, all_reduce(9, kBytes)));
  leave(world, g);
}

TEST(Aggregators, OneThatStandsStillIsGivenUp) {
  sim::World world(served(5, 3));
  const auto g = made(world);
  const Nanos begin = world.now();
  const Outcomes all = world.post_all(g, all_reduce(1, kBytes));
  world.at(begin + kMilli, [&] { world.aggregators().pause(2, true); });
  finish(world, all);
  EXPECT_GT(world.now() - begin, kSecond) << "setting aggregator_patience";
  EXPECT_LT(world.now() - begin, 3 * kSecond);
  EXPECT_GT(world.total(g, Counter::agg_diverted), 0u);
  world.aggregators().pause(2, false);
  finish(world, world.post_all(g, all_reduce(2, kBytes)));
  leave(world, g);
}

TEST(Aggregators, OneThatComesLateIsUsed) {
  sim::World world(served(5, 2));
  world.aggregators().kill(0);
  world.aggregators().kill(1);
  const auto g = made(world);
  finish(world, world.post_all(g, all_reduce(1, kBytes)));
  EXPECT_EQ(served_bytes(world, g), 0u);
  world.aggregators().start(0);
  world.aggregators().start(1);
  world.run([] { return false; }, 5 * kSecond);
  finish(world, world.post_all(g, all_reduce(2, kBytes)));
  EXPECT_GT(folded(world, 0), kBytes / 16);
  EXPECT_GT(folded(world, 1), kBytes / 16);
  leave(world, g);
}

// Rank 0 is the one that asks. When it dies, the group fails and the jobs end.
TEST(Aggregators, JobsOfADeadGroupEnd) {
  sim::WorldSpec spec = served(5, 2);
  spec.config.liveness_limit = 2 * kSecond;
  sim::World world(spec);
  const auto g = made(world);
  const Outcomes all = world.post_all(g, all_reduce(1, kBytes));
  world.at(world.now() + kMilli, [&] { world.kill(0); });
  const auto lives = [](Member m) { return m != 0; };
  ASSERT_TRUE(world.run([&] { return all_over(all, lives); }, 60 * kSecond));
  for (Member m = 1; m < 5; m++) EXPECT_EQ(all[m]->status.code(), Code::kPeerLost);
  EXPECT_TRUE(world.run(
      [&] {
        return world.aggregators().report(0).jobs.empty() &&
               world.aggregators().report(1).jobs.empty();
      },
      10 * kSecond));
}

// Aggregators have their own clocks, and two runs of one specification are identical.
TEST(Aggregators, AreDrivenByEventsAlone) {
  uint64_t hashes[2] = {};
  for (uint64_t& hash : hashes) {
    sim::WorldSpec spec = served(4, 2, "turn", "leafspine:leaves=2,spines=2");
    spec.aggregators[0].clock = sim::SimClock(-5 * kSecond, 0.5);
    spec.aggregators[1].clock = sim::SimClock(77 * kSecond, 2);
    spec.aggregators[1].options.lanes = 2;
    sim::World world(spec);
    const auto g = made(world);
    finish(world, world.post_all(g, all_reduce(1, kBytes)));
    EXPECT_GT(folded(world, 1), kBytes / 16);
    leave(world, g);
    hash = world.trace_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace mcast::test
