// Worlds: real groups on both lanes over a simulated network, driven by events alone.
#include "sim/world/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/world/exchange_content.h"
#include "support/errors.h"
#include "support/world.h"

namespace mcast::test {
namespace {

using sim::Operation;
using wire::Kind;

std::vector<Operation> some_of_all(size_t bytes, uint32_t ranks) {
  std::vector<Operation> all;
  const auto add = [&](Kind kind, size_t block) {
    Operation op;
    op.kind = kind;
    op.id = all.size() + 1;
    op.bytes = block / 4 * 4;
    op.root = static_cast<Member>(ranks / 2);
    all.push_back(op);
  };
  add(Kind::kBroadcast, bytes);
  add(Kind::kAllgather, bytes / ranks);
  add(Kind::kAllreduce, bytes);
  add(Kind::kReduceScatter, bytes / ranks);
  add(Kind::kReduce, bytes);
  add(Kind::kBroadcast, 700);
  add(Kind::kAllreduce, 40);
  add(Kind::kAllToAll, bytes / ranks);
  add(Kind::kAllToAll, bytes / ranks);
  all.back().splits = 5;
  add(Kind::kGather, bytes / ranks);
  add(Kind::kScatter, bytes / ranks);
  add(Kind::kBarrier, 0);
  return all;
}

// Makes a group of all ranks that carries out these operations, all posted at once.
void carry_out(sim::World& world, const std::vector<Operation>& operations) {
  const auto g = world.make_group();
  ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
  for (Member m = 0; m < world.size(g); m++) ASSERT_TRUE(world.making(g, m).ok());
  Outcomes all;
  for (const Operation& op : operations) {
    for (auto& one : world.post_all(g, op)) all.push_back(std::move(one));
  }
  EXPECT_TRUE(world.run([&] { return all_over(all); }, 60 * kSecond));
  for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
  world.close(g, 10 * kSecond);
  EXPECT_TRUE(world.run([&] { return world.closed(g); }, 60 * kSecond));
  EXPECT_LE(world.most_spins(), 3u);
}

TEST(World, OperationsGiveTheRightBytes) {
  for (const char* topology : {"star", "leafspine:leaves=3,spines=2", "fattree:radix=4"}) {
    for (const double loss : {0.0, 1e-3, 0.02}) {
      SCOPED_TRACE(topology + std::string(", loss ") + std::to_string(loss));
      sim::WorldSpec spec = world_of(9, topology);
      spec.net.fabric->links.inner.queue = spec.net.fabric->links.host_down.queue = 200'000;
      sim::World world(spec);
      lose(world, loss);
      carry_out(world, some_of_all(300'000, 9));
    }
  }
}

// Ranks fold within the host and move large blocks by rails by default; otherwise each acts by
// itself.
TEST(World, HostsMayHaveSeveralRanks) {
  for (const char* shared : {"auto", "off"}) {
    for (const bool ledgers : {false, true}) {
      SCOPED_TRACE(std::string("shared_memory ") + shared + (ledgers ? ", ledgers" : ""));
      sim::WorldSpec spec = world_of(3, "star");
      spec.ranks = 3;
      spec.ledgers = ledgers;
      spec.config.shared_memory = shared;
      spec.net.fabric->links.nic_queues = 2;
      sim::World world(spec);
      carry_out(world, some_of_all(200'000, 9));
      EXPECT_EQ(world.parts(0).size(), shared == std::string("auto") ? 6u : 0u);
    }
  }
}

// Even, uneven and empty blocks, and one rank that gets nearly everything; on the network, within a
// host, among hosts with several ranks, on the ring, and beside subgroups.
TEST(World, ExchangesGiveTheRightBytes) {
  std::vector<Operation> all;
  for (const size_t bytes : {0u, 1u, 1000u, 49'153u, 300'001u}) {
    for (const Kind kind : {Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
      for (uint64_t splits = 0; splits < (kind == Kind::kAllToAll ? 4u : 1u); splits++) {
        Operation& op = all.emplace_back();
        op.kind = kind;
        op.id = all.size();
        op.bytes = bytes;
        op.splits = splits;
        op.root = 2;
      }
    }
  }
  for (const auto& [hosts, ranks, algorithm, subgroups] : {std::tuple(5, 1, "auto", 1),
                                                           {5, 1, "ring", 1},
                                                           {1, 4, "auto", 1},
                                                           {3, 2, "auto", 1},
                                                           {4, 1, "auto", 2}}) {
    SCOPED_TRACE(testing::Message() << hosts << " hosts with " << ranks << ", " << algorithm);
    sim::WorldSpec spec = world_of(hosts, "star");
    spec.ranks = ranks;
    spec.config.algorithm = algorithm;
    spec.config.subgroups = subgroups;
    sim::World world(spec);
    carry_out(world, all);
  }
}

TEST(World, AWrongByteOfABlockIsFound) {
  const sim::ExchangeShape shape{Kind::kAllToAll, 3, 1000, 7, 0};
  for (uint32_t self = 0; self < 3; self++) {
    const auto in = sim::exchange_pages(shape, 4, self, sim::Side::kIn);
    size_t at = 0;
    for (uint32_t from = 0; from < 3; from++) {
      const auto out = sim::exchange_pages(shape, 4, from, sim::Side::kOut);
      const Slice block = sim::exchange_blocks(shape, from, sim::Side::kOut, out)[self];
      std::copy(block.data(), block.data() + block.length, in->data() + at);
      at += block.length;
    }
    EXPECT_EQ(at, in->size());
    EXPECT_EQ(sim::wrong_blocks(shape, 4, self, *in), "");
    EXPECT_NE(sim::wrong_blocks(shape, 5, self, *in), "") << "another operation's";
    for (const size_t byte : {size_t{0}, at - 1}) {
      in->data()[byte] ^= std::byte{1};
      EXPECT_THAT(sim::wrong_blocks(shape, 4, self, *in), testing::HasSubstr("wrong byte"));
      in->data()[byte] ^= std::byte{1};
    }
  }
}

// A rank's stats show its lanes' values: the fewer ranks contribute, the longer the contributions.
TEST(World, StatsShowTheContributorsSegment) {
  for (const char* shared : {"auto", "off"}) {
    SCOPED_TRACE(std::string("shared_memory ") + shared);
    const bool hosts = shared == std::string("auto");
    sim::WorldSpec spec = world_of(10, "star");
    spec.ranks = 2;
    spec.config.shared_memory = shared;
    spec.config.incast = 512 << 10;
    sim::World world(spec);
    const auto g = world.make_group();
    ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
    const GroupStats stats = world.group(g, 3).stats();
    EXPECT_EQ(stats.contributions, hosts ? "one per host (10)" : "one per rank");
    const size_t others = hosts ? 10 - 1 : 20 - 1;
    EXPECT_EQ(stats.segment, spec.config.incast / (2 * others) / 64 * 64);
  }
}

TEST(World, RanksOfOneHostNeedNoNetwork) {
  sim::WorldSpec spec = world_of(1, "star");
  spec.ranks = 4;
  sim::World world(spec);
  carry_out(world, some_of_all(400'000, 4));
  EXPECT_EQ(world.network().totals().datagrams_sent, 0u);
  EXPECT_EQ(world.network().totals().frames, 0u);
}

// A host's link carries each stream once, whatever the number of its ranks.
TEST(World, RailsBringAStreamToEachHostOnce) {
  sim::WorldSpec spec = world_of(3, "star");
  spec.ranks = 4;
  sim::World world(spec);
  const auto g = world.make_group();
  ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
  world.network().fabric().reset_traffic();
  const size_t bytes = 8'000'000;
  const Outcomes all = world.post_all(g, {.kind = Kind::kBroadcast, .id = 1, .bytes = bytes});
  ASSERT_TRUE(world.run([&] { return all_over(all); }, 60 * kSecond));
  for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
  const auto down =
      sim::sum_by_class(world.network().fabric().topology(), world.network().fabric().traffic())[1];
  const auto data = down.sum.of[static_cast<size_t>(sim::TrafficClass::kData)].bytes;
  EXPECT_GT(data, 2 * bytes);
  EXPECT_LT(data, 2 * bytes + bytes / 5);  // with headers
}

TEST(World, SubgroupsHaveLanesOfTheirOwn) {
  for (const bool ledgers : {false, true}) {
    sim::WorldSpec spec = world_of(4, "star");
    spec.ledgers = ledgers;
    spec.config.subgroups = 2;
    sim::World world(spec);
    carry_out(world, some_of_all(9'000'000, 4));
    ASSERT_EQ(world.parts(0).size(), 2u);
    for (const auto part : world.parts(0)) {
      EXPECT_GT(world.total(part, Counter::datagrams_sent), 1000u);
      EXPECT_NE(&world.lane(0, LaneId::kMulticast, 1), &world.lane(0, LaneId::kMulticast, 2));
    }
  }
}

TEST(World, ADeadRankFailsThoseOfItsHost) {
  for (const bool paused : {false, true}) {
    sim::WorldSpec spec = world_of(1, "star");
    spec.ranks = 4;
    spec.config.liveness_limit = 2 * kSecond;
    sim::World world(spec);
    const auto g = world.make_group();
    ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
    Outcomes all;
    for (Member m = 0; m < 3; m++) {
      all.push_back(world.post(g, m, {.kind = Kind::kAllreduce, .id = 1, .bytes = 400'000}));
    }
    world.at(world.now() + kMilli, [&] { paused ? world.pause(3, true) : world.kill(3); });
    EXPECT_TRUE(world.run([&] { return all_over(all); }, 60 * kSecond));
    for (const auto& one : all) {
      EXPECT_EQ(one->status.code(), Code::kPeerLost) << one->status.message();
      EXPECT_THAT(one->status.message(), testing::HasSubstr("rank 3"));
    }
  }
}

TEST(World, OperationsByTheRingGiveTheRightBytes) {
  sim::WorldSpec spec = world_of(5, "star");
  spec.config.algorithm = "ring";
  sim::World world(spec);
  carry_out(world, some_of_all(300'000, 5));
}

TEST(World, LedgersTakeThePlaceOfMemory) {
  for (const char* algorithm : {"auto", "ring"}) {
    for (const double loss : {0.0, 0.01}) {
      SCOPED_TRACE(algorithm + std::string(", loss ") + std::to_string(loss));
      sim::WorldSpec spec = world_of(24, "leafspine:leaves=3,spines=2");
      spec.ledgers = true;
      spec.config.algorithm = algorithm;
      sim::World world(spec);
      lose(world, loss);
      carry_out(world, some_of_all(400'000, 24));
    }
  }
}

// One rank's clock is a tenth as fast as the world's, another's ten times as fast.
TEST(World, ClocksMayDiffer) {
  sim::WorldSpec spec = world_of(6, "star");
  spec.clock = [](uint32_t rank) {
    return sim::SimClock(rank * 1000 * kSecond, rank == 1 ? 0.1 : rank == 4 ? 10 : 1);
  };
  sim::World world(spec);
  lose(world, 0.01);
  carry_out(world, some_of_all(300'000, 6));
}

TEST(World, CommandsBetweenThreadsTakeTheirTime) {
  sim::WorldSpec spec = world_of(4, "star");
  spec.costs.command = 50 * kMicro;
  sim::World world(spec);
  carry_out(world, some_of_all(300'000, 4));
}

TEST(World, GroupsOfSomeRanksSideBySide) {
  sim::World world(world_of(6, "star"));
  const auto a = world.make_group({0, 1, 2, 3}), b = world.make_group({3, 5, 2});
  ASSERT_TRUE(world.run([&] { return world.made(a) && world.made(b); }, 60 * kSecond));
  Outcomes all;
  uint64_t id = 0;
  for (const Operation& op : some_of_all(200'000, 4)) {
    for (const auto g : {a, b}) {
      Operation one = op;
      one.id = ++id;
      for (auto& outcome : world.post_all(g, one)) all.push_back(std::move(outcome));
    }
  }
  EXPECT_TRUE(world.run([&] { return all_over(all); }, 60 * kSecond));
  for (const auto& one : all) EXPECT_EQ(what_is_wrong(*one), "");
}

TEST(World, ADeadRankFailsTheOthersInBoundedTime) {
  sim::World world(world_of(5, "star"));
  const auto g = world.make_group();
  ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
  Operation op{.kind = Kind::kAllgather, .id = 1, .bytes = 4'000'000};
  const Outcomes all = world.post_all(g, op);
  world.at(world.now() + kMilli, [&] { world.kill(2); });
  const auto survivors = [&](Member m) { return m != 2; };
  EXPECT_TRUE(world.run([&] { return all_over(all, survivors); }, 60 * kSecond));
  for (const auto& one : all) {
    if (one->member == 2) continue;
    EXPECT_TRUE(is_error(one->status, ErrorId::rank_lost, {{"rank", "2"}}));
  }
}

TEST(World, ASilentRankIsGivenUp) {
  sim::WorldSpec spec = world_of(4, "star");
  spec.config.liveness_limit = 2 * kSecond;
  sim::World world(spec);
  const auto g = world.make_group();
  ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
  Operation op{.kind = Kind::kAllgather, .id = 1, .bytes = 4'000'000};
  const Outcomes all = world.post_all(g, op);
  world.at(world.now() + kMilli, [&] { world.pause(1, true); });
  const Nanos start = world.now();
  EXPECT_TRUE(
      world.run([&] { return all_over(all, [](Member m) { return m != 1; }); }, 60 * kSecond));
  EXPECT_LT(world.now() - start, 10 * kSecond);
  for (const auto& one : all) {
    EXPECT_TRUE(one->member == 1 || !one->status.ok());
  }
}

// After all groups are closed, nothing happens any more: no timer, no frame, no busy lane.
TEST(World, AWorldWithoutGroupsStandsStill) {
  sim::World world(world_of(5, "leafspine:leaves=2,spines=2"));
  carry_out(world, some_of_all(200'000, 5));
  world.run([] { return false; }, 600 * kSecond);
  EXPECT_TRUE(world.standstill());
}

TEST(World, TheSameSpecificationIsTheSameRun) {
  const auto hash = [](uint64_t seed) {
    sim::WorldSpec spec = world_of(6, "leafspine:leaves=2,spines=2");
    spec.seed = spec.net.seed = spec.net.fabric->links.seed = seed;
    spec.costs.command = 20 * kMicro;
    sim::World world(spec);
    lose(world, 0.01);
    carry_out(world, some_of_all(100'000, 6));
    return world.trace_hash();
  };
  const uint64_t one = hash(1);
  EXPECT_EQ(one, hash(1));
  EXPECT_NE(one, hash(2));
}

TEST(Ledger, FindsMisplacedDuplicateAndMissingBytes) {
  const auto reference = std::make_shared<const sim::Reference>(7, 3, 1000, 0);
  const auto verdict = [&](auto&& place) {
    sim::Ledger ledger(reference, 1);
    place(ledger);
    return ledger.verdict();
  };
  const auto part = [&](uint32_t stream, size_t from, size_t length) {
    return reference->stream(stream).bytes().subspan(from, length);
  };
  const auto all = [&](sim::Ledger& ledger) {
    for (const uint32_t s : {0u, 2u}) {
      ledger.place(s, 0, part(s, 0, 640));
      ledger.place(s, 640, part(s, 640, 360));
    }
  };
  EXPECT_EQ(verdict(all), "");
  using testing::HasSubstr;
  EXPECT_THAT(verdict([&](auto& l) { l.place(0, 0, part(0, 0, 640)); }), HasSubstr("not arrived"));
  EXPECT_THAT(verdict([&](auto& l) { l.place(0, 64, part(0, 0, 64)); }), HasSubstr("wrong place"));
  EXPECT_THAT(verdict([&](auto& l) { l.place(0, 0, part(2, 0, 64)); }), HasSubstr("wrong place"));
  EXPECT_THAT(verdict([&](auto& l) { l.place(1, 0, part(1, 0, 64)); }),
              HasSubstr("nothing belongs"));
  EXPECT_THAT(verdict([&](auto& l) { l.place(3, 0, part(0, 0, 64)); }),
              HasSubstr("nothing belongs"));
  EXPECT_THAT(verdict([&](auto& l) { l.place(0, 960, part(0, 0, 64)); }),
              HasSubstr("nothing belongs"));
  EXPECT_THAT(verdict([&](auto& l) {
                all(l);
                l.place(2, 640, part(2, 640, 64));
              }),
              HasSubstr("twice"));
}

TEST(SimClock, ShowsATimeAtTheMomentThatItSays) {
  for (const double rate : {0.1, 0.37, 1.0, 3.0, 10.0}) {
    sim::SimClock clock(77, rate);
    clock.jump(1000);
    clock.set_rate(rate, 12345);
    for (const Nanos shown : {clock.at(12345) + 1, clock.at(12345) + 12347, Nanos{1'000'000'007}}) {
      const Nanos when = clock.when(shown);
      EXPECT_GE(clock.at(when), shown);
      EXPECT_LT(clock.at(when - 1), shown);
    }
    EXPECT_EQ(clock.when(kNever), kNever);
  }
}

}  // namespace
}  // namespace mcast::test
