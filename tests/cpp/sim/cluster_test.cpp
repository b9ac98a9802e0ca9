// Whole groups over fabrics: links with rates and queues, trains, streams with windows. Results are
// compared byte by byte and the traffic of a clean run with the topology, and the limits of the
// queues of ring and reductions are reached.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/world/world.h"
#include "support/cluster.h"
#include "support/program.h"

namespace mcast::test {
namespace {

constexpr double kGigabitRate = 1.25e8;

ClusterOptions on_fabric(uint32_t members, const std::string& topology, double rate) {
  ClusterOptions o;
  o.ranks = members;
  SimFabric fabric;
  fabric.links.topology = sim::TopologySpec::parse(topology, members).value();
  fabric.links.host_up = fabric.links.host_down = fabric.links.inner = {rate, 5000, 0, 0, 0, 0, 0};
  o.net.fabric = fabric;
  o.net.jitter = 0;
  return o;
}

Runs some_of_all(Cluster& c, size_t bytes) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) {
    runs.push_back(c.broadcast(r, 1, bytes, 1));
    runs.push_back(c.allgather(r, bytes / c.size(), 2));
    runs.push_back(c.reduction(r, wire::Kind::kAllreduce, 0, bytes, 3));
    runs.push_back(c.reduction(r, wire::Kind::kReduceScatter, 0, bytes / c.size(), 4));
    runs.push_back(c.barrier(r));
  }
  return runs;
}

TEST(OnFabric, ResultsAreRight) {
  for (const char* topology : {"star", "leafspine:leaves=3,spines=2", "fattree:radix=4"}) {
    for (const double loss : {0.0, 1e-3, 0.02}) {
      SCOPED_TRACE(topology + std::string(", loss ") + std::to_string(loss));
      ClusterOptions o = on_fabric(9, topology, 10 * kGigabitRate);
      o.net.fabric->links.inner.queue = o.net.fabric->links.host_down.queue = 200'000;
      o.prepare = [loss](SimNetwork& net) {
        for (sim::LinkId id = 0; id < net.fabric().topology().links(); id++) {
          net.fabric().set_loss(id, loss, 2);
        }
      };
      Cluster c(o);
      finish(c, some_of_all(c, 300'000));
    }
  }
}

TEST(OnFabric, HostsWithSeveralRanksShareTheirLinks) {
  ClusterOptions o = on_fabric(8, "star", 10 * kGigabitRate);
  o.net.fabric->links.topology.hosts = 4;
  o.net.fabric->host_endpoints = 2;
  o.net.fabric->links.nic_queues = 2;
  Cluster c(o);
  finish(c, some_of_all(c, 300'000));
}

// Trains have one class only, also if one cannot be sent when another begins.
TEST(OnFabric, AFullInterfaceIsWaitedFor) {
  for (const bool classes : {false, true}) {
    ClusterOptions o = on_fabric(4, "star", kGigabitRate);
    o.net.fabric->links.nic_limit = 20'000;
    if (classes) o.prepare = [](SimNetwork& net) { net.set_classifier(sim::class_of_datagram); };
    Cluster c(o);
    finish(c, some_of_all(c, 300'000));
    sim::LinkTraffic sum;
    for (const auto& link : c.net().fabric().traffic()) {
      for (size_t k = 0; k < sim::kTrafficClasses; k++) sum.of[k] += link.of[k];
    }
    EXPECT_GT(sum.of[static_cast<size_t>(sim::TrafficClass::kData)].packets, 0u);
    EXPECT_GT(sum.of[static_cast<size_t>(sim::TrafficClass::kControl)].packets, 0u);
    EXPECT_EQ(sum.of[static_cast<size_t>(sim::TrafficClass::kProbe)].packets > 0, classes);
    EXPECT_EQ(sum.of[static_cast<size_t>(sim::TrafficClass::kBackground)].packets, 0u);
  }
}

// A clean broadcast: each chunk crosses each edge of the tree once.
TEST(OnFabric, ABroadcastCrossesTheTreeOnce) {
  ClusterOptions o = on_fabric(12, "leafspine:leaves=3,spines=2", 10 * kGigabitRate);
  Cluster c(o);
  c.run_for(kSecond);
  c.net().fabric().reset_traffic();
  const size_t chunk = c.group(0).core().params().agreed.chunk;
  const uint64_t before = c.total(Counter::datagrams_sent);
  finish(c, broadcast_all(c, 0, 500 * chunk, 1));
  EXPECT_EQ(c.total(Counter::gaps), 0u);
  const uint64_t sent = c.total(Counter::datagrams_sent) - before;
  EXPECT_GE(sent, 500u);
  const auto classes = sim::sum_by_class(c.net().fabric().topology(), c.net().fabric().traffic());
  uint64_t packets = 0;
  for (const auto& one : classes) {
    packets += one.sum.of[static_cast<size_t>(sim::TrafficClass::kData)].packets;
  }
  EXPECT_EQ(packets, sent * (12 + 3));
}

TEST(OnFabric, TheSameSeedIsTheSameRun) {
  const auto hash = [](uint64_t seed) {
    ClusterOptions o = on_fabric(6, "leafspine:leaves=2,spines=2", kGigabitRate);
    o.net.fabric->links.seed = o.net.seed = seed;
    o.prepare = [](SimNetwork& net) {
      for (sim::LinkId id = 0; id < net.fabric().topology().links(); id++) {
        net.fabric().set_loss(id, 0.01, 1);
      }
    };
    Cluster c(o);
    finish(c, some_of_all(c, 100'000));
    return c.net().fabric().trace().value();
  };
  EXPECT_EQ(hash(1), hash(1));
  EXPECT_NE(hash(1), hash(2));
}

// The maximum that any member had queued for any other.
size_t most_queued(Cluster& c, Channel channel, const Runs& runs) {
  size_t most = 0;
  const auto watch = [&] {
    for (Member a = 0; a < c.size(); a++) {
      for (PeerId b = 0; b < c.size(); b++) {
        if (a != b) most = std::max(most, c.lane(a).transport().stream().queued(b, channel));
      }
    }
    return all_done(runs);
  };
  EXPECT_TRUE(c.run(watch));
  finish(c, runs);
  return most;
}

TEST(OnFabric, TheRingReachesItsLimitOfWhatIsQueued) {
  ClusterOptions o = on_fabric(4, "star", kGigabitRate / 10);
  o.group.multicast.wanted = false;
  Cluster c(o);
  const size_t most = most_queued(c, Channel::kRepair, allgather_all(c, 1 << 20, 1));
  EXPECT_GE(most, 256u << 10);
  EXPECT_LE(most, 1u << 20);
}

TEST(OnFabric, ReductionsReachTheirLimitOfWhatIsQueued) {
  ClusterOptions o = on_fabric(4, "star", kGigabitRate / 10);
  Cluster c(o);
  Runs runs;
  for (Member r = 0; r < 4; r++) {
    runs.push_back(c.reduction(r, wire::Kind::kReduce, 0, 4 << 20, 1));
  }
  const size_t most = most_queued(c, Channel::kReduce, runs);
  EXPECT_GE(most, 128u << 10);
  EXPECT_LE(most, 1u << 20);
}

}  // namespace
}  // namespace mcast::test
