// Compares the fabric with a packet simulator on random small networks. With trains of one packet
// every arrival, drop and byte is equal; with long trains the bytes are equal, and times differ at
// most by the trains that compete. Also tests the fabric's other guarantees: the order of an
// interface's queues, limits, marks, losses, hashes.
#include "sim/network/fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/packet_net.h"

namespace mcast::sim {
namespace {

const MulticastAddress kAddress{5, 7000, false};

// A fabric and its results.
class FabricRun final : public FabricSink {
 public:
  explicit FabricRun(const FabricOptions& options) : fabric(options, events, *this) {}

  struct Arrival {
    uint64_t id = 0;  // Stretch::segment
    HostId host = 0;
    uint64_t mask = 0;
    Nanos at = 0;
  };
  void on_train(HostId host, const TrainRef& train, uint64_t mask, bool echo) override {
    if (!echo) arrivals.push_back({train->stream.segment, host, mask, events.now()});
  }
  void on_departure(const Train& train) override { departures.push_back(train.stream.segment); }

  // `count` packets of `bytes` wire bytes to all members, or to one host.
  TrainRef make(HostId from, uint64_t id, unsigned count, size_t bytes, HostId to = kNone) {
    TrainRef train = pool.make();
    train->stream.segment = id;
    train->plane = 0;
    train->overhead = 0;
    for (unsigned i = 0; i < count; i++) train->add(bytes);
    if (to == kNone) {
      train->tree = fabric.router().tree_for(0, kAddress, from, &train->root_level);
    } else {
      train->route = fabric.router().unicast(0, from, to, 0);
    }
    return train;
  }
  void run(Nanos until = kNever) {
    while (!events.empty() && events.next() <= until) {
      const Event event = events.pop();
      if (event.kind == EventKind::kHop) fabric.on_hop(event.index);
      if (event.kind == EventKind::kNic) fabric.on_nic(event.index);
    }
    if (until != kNever) events.move_to(until);
  }
  void join_all() {
    for (HostId h = 0; h < fabric.topology().hosts(); h++) fabric.router().join(0, kAddress, h);
  }

  EventQueue events;
  TrainPool pool;
  Fabric fabric;
  std::vector<Arrival> arrivals;
  std::vector<uint64_t> departures;
};

FabricOptions star(uint32_t hosts, double rate, double delay = 1000) {
  FabricOptions options;
  options.topology.hosts = hosts;
  options.host_up = options.host_down = options.inner = {rate, delay, 0, 0, 0, 0, 0};
  return options;
}

struct Net {
  FabricOptions options;
  uint32_t hosts = 0;
};

// Slow links, so that no two events fall into the same nanosecond by accident.
Net random_net(Rng& rng, bool queues) {
  Net net;
  net.hosts = static_cast<uint32_t>(2 + rng.below(12));
  static constexpr const char* kTexts[] = {"star", "leafspine:leaves=3,spines=2,links=2",
                                           "fattree:radix=4"};
  net.options.topology = TopologySpec::parse(kTexts[rng.below(3)], net.hosts).value();
  net.options.seed = rng.next();
  for (PortSpec* const port : {&net.options.host_up, &net.options.host_down, &net.options.inner}) {
    port->rate = 1e5 * static_cast<double>(1 + rng.below(50));
    port->delay = static_cast<double>(1 + rng.below(1'000'000));
    if (queues) port->queue = static_cast<double>(3000 + rng.below(20000));
  }
  net.options.host_up.queue = 0;  // a host's queue is not that of its port
  return net;
}

struct Sent {
  Nanos at;
  HostId from, to;
  unsigned count;
  size_t bytes;
};

std::vector<Sent> random_traffic(Rng& rng, uint32_t hosts, unsigned longest) {
  std::vector<Sent> all;
  for (uint64_t n = 1 + rng.below(40); n > 0; n--) {
    Sent sent{static_cast<Nanos>(rng.below(200'000'000)), static_cast<HostId>(rng.below(hosts)),
              kNone, static_cast<unsigned>(1 + rng.below(longest)), 60 + rng.below(1460)};
    if (rng.chance(0.5)) {
      sent.to = (sent.from + 1 + static_cast<HostId>(rng.below(hosts - 1))) % hosts;
    }
    all.push_back(sent);
  }
  std::sort(all.begin(), all.end(), [](const Sent& a, const Sent& b) { return a.at < b.at; });
  return all;
}

// Sends the same packets to both networks; `apart`: each packet is its own train.
struct Compared {
  FabricRun world;
  PacketNet packets;
  uint32_t ids = 0;
  double longest_train = 0;  // ns at the slowest link

  Compared(const Net& net, const std::vector<Sent>& traffic, bool apart)
      : world(net.options), packets(world.fabric.topology(), world.fabric.router(), net.options) {
    world.join_all();
    const double slowest =
        std::min({net.options.host_up.rate, net.options.host_down.rate, net.options.inner.rate});
    for (const Sent& sent : traffic) {
      world.run(sent.at);
      const uint32_t first = ids;
      for (unsigned i = 0; i < sent.count; i++) {
        const TrainRef one = world.make(sent.from, ids, 1, sent.bytes, sent.to);
        packets.send(static_cast<double>(sent.at), sent.from,
                     {ids, static_cast<double>(sent.bytes), sent.to == kNone, one->route, one->tree,
                      one->root_level});
        if (apart) {
          EXPECT_TRUE(world.fabric.send(sent.from, one));
        }
        ids++;
      }
      if (!apart) {
        EXPECT_TRUE(world.fabric.send(
            sent.from, world.make(sent.from, first, sent.count, sent.bytes, sent.to)));
      }
      longest_train =
          std::max(longest_train, static_cast<double>(sent.count * sent.bytes) / slowest * 1e9);
    }
    world.run();
    packets.run();
  }
};

TEST(Fabric, TrainsOfOneAreAPacketSimulator) {
  uint64_t drops = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    Rng rng(seed);
    const Net net = random_net(rng, seed % 2 == 0);
    Compared both(net, random_traffic(rng, net.hosts, 20), true);
    drops += both.packets.drops();
    auto want = both.packets.arrivals();
    auto have = both.world.arrivals;
    ASSERT_EQ(have.size(), want.size()) << "seed " << seed;
    std::sort(want.begin(), want.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.packet, a.host) < std::tuple(b.packet, b.host);
    });
    std::sort(have.begin(), have.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.id, a.host) < std::tuple(b.id, b.host);
    });
    uint64_t lost = 0;
    for (size_t i = 0; i < want.size(); i++) {
      ASSERT_EQ(have[i].id, want[i].packet) << "seed " << seed;
      ASSERT_EQ(have[i].host, want[i].host) << "seed " << seed;
      ASSERT_NEAR(static_cast<double>(have[i].at), want[i].at, 2) << "seed " << seed;
    }
    for (LinkId id = 0; id < both.world.fabric.topology().links(); id++) {
      const LinkTraffic& link = both.world.fabric.traffic()[id];
      const auto bytes = both.packets.bytes().find(id);
      EXPECT_EQ(static_cast<double>(link.all().bytes),
                bytes == both.packets.bytes().end() ? 0 : bytes->second);
      lost += link.lost_full;
    }
    EXPECT_EQ(lost, both.packets.drops()) << "seed " << seed;
    EXPECT_TRUE(both.world.fabric.idle());
  }
  EXPECT_GT(drops, 1000u) << "queues were never full";
}

TEST(Fabric, LongTrainsMoveTheSameBytesAtMuchTheSameTimes) {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    Rng rng(seed + 1000);
    const Net net = random_net(rng, false);
    const auto traffic = random_traffic(rng, net.hosts, 64);
    Compared both(net, traffic, false);
    size_t packets = 0;
    Nanos end = 0;
    for (const auto& arrival : both.world.arrivals) {
      packets += static_cast<size_t>(std::popcount(arrival.mask));
      end = std::max(end, arrival.at);
    }
    EXPECT_EQ(packets, both.packets.arrivals().size()) << "seed " << seed;
    double want = 0;
    for (const auto& arrival : both.packets.arrivals()) want = std::max(want, arrival.at);
    // All queues are served while there is work, so the end varies only with the order of trains.
    EXPECT_NEAR(static_cast<double>(end), want, 6 * both.longest_train) << "seed " << seed;
    for (const auto& [link, bytes] : both.packets.bytes()) {
      EXPECT_EQ(static_cast<double>(both.world.fabric.traffic()[link].all().bytes), bytes);
    }
  }
}

TEST(Fabric, OneTrainAloneIsAtEachHostWhenItsLastPacketIs) {
  for (uint64_t seed = 1; seed <= 100; seed++) {
    Rng rng(seed + 2000);
    const Net net = random_net(rng, false);
    auto traffic = random_traffic(rng, net.hosts, 64);
    traffic.resize(1);
    Compared both(net, traffic, false);
    std::map<HostId, double> last;
    for (const auto& a : both.packets.arrivals()) last[a.host] = std::max(last[a.host], a.at);
    ASSERT_EQ(both.world.arrivals.size(), last.size());
    for (const auto& a : both.world.arrivals) {
      EXPECT_NEAR(static_cast<double>(a.at), last[a.host], 2) << "seed " << seed;
    }
  }
}

TEST(Fabric, AnInterfaceServesItsQueuesInTurn) {
  FabricOptions options = star(2, 1e9);
  options.nic_queues = 2;
  FabricRun world(options);
  for (uint64_t i = 0; i < 4; i++) {
    ASSERT_TRUE(world.fabric.send(0, world.make(0, i, 1, 1000, 1), 0));
  }
  for (uint64_t i = 10; i < 14; i++) {
    ASSERT_TRUE(world.fabric.send(0, world.make(0, i, 1, 1000, 1), 1));
  }
  world.run();
  EXPECT_EQ(world.departures, (std::vector<uint64_t>{0, 10, 1, 11, 2, 12, 3, 13}));
}

TEST(Fabric, AFullInterfaceRefuses) {
  FabricOptions options = star(2, 1e9);
  options.nic_limit = 2500;
  FabricRun world(options);
  int taken = 0;
  for (uint64_t i = 0; i < 6; i++) {
    taken += world.fabric.send(0, world.make(0, i, 1, 1000, 1)) ? 1 : 0;
  }
  EXPECT_EQ(taken, 3) << "one is being sent, two wait";
  world.run();
  EXPECT_EQ(world.arrivals.size(), 3u);
  EXPECT_TRUE(world.fabric.send(0, world.make(0, 9, 1, 1000, 1)));
}

TEST(Fabric, DropsMarksAndPeaksAreCounted) {
  FabricOptions options = star(3, 1e9);
  options.host_down.queue = 5000;
  options.host_down.mark = 2000;
  FabricRun world(options);
  // Two hosts send 10 packets each to the third at the same time: half must wait.
  for (const HostId from : {0u, 1u}) {
    for (uint64_t i = 0; i < 10; i++) {
      ASSERT_TRUE(world.fabric.send(from, world.make(from, i, 1, 1000, 2)));
    }
  }
  world.run();
  const LinkTraffic& down =
      world.fabric.traffic()[Topology::reverse(world.fabric.topology().host_link(0, 2))];
  EXPECT_EQ(down.lost_full + world.arrivals.size(), 20u);
  EXPECT_GT(down.lost_full, 0u);
  EXPECT_GT(down.marked, 0u);
  EXPECT_LE(down.peak_waiting, 5000);
  EXPECT_GT(down.peak_waiting, 4000);
}

TEST(Fabric, LosslessPortStopsItsSenderInsteadOfDropping) {
  FabricOptions options = star(3, 1e9);
  options.host_down.rate = 1e8;
  options.host_down.queue = 64000;
  options.host_down.pause = 10000;
  options.host_down.resume = 5000;
  FabricRun world(options);
  for (uint64_t i = 0; i < 300; i++) {
    ASSERT_TRUE(world.fabric.send(0, world.make(0, i, 1, 1000, 2)));
  }
  world.run();
  EXPECT_EQ(world.arrivals.size(), 300u);
  const LinkTraffic& down =
      world.fabric.traffic()[Topology::reverse(world.fabric.topology().host_link(0, 2))];
  EXPECT_EQ(down.lost_full, 0u);
  EXPECT_LT(down.peak_waiting, 14000);
  EXPECT_NEAR(static_cast<double>(world.events.now()), 3e6, 1e5) << "the slow link never idled";
}

TEST(Fabric, ALinkLosesItsShareOfPackets) {
  FabricRun world(star(2, 1e9));
  world.join_all();
  world.fabric.set_loss(Topology::reverse(world.fabric.topology().host_link(0, 1)), 0.05, 1);
  for (uint64_t i = 0; i < 2000; i++) {
    ASSERT_TRUE(world.fabric.send(0, world.make(0, i, 50, 100)));
  }
  world.run();
  uint64_t arrived = 0;
  for (const auto& a : world.arrivals) arrived += static_cast<uint64_t>(std::popcount(a.mask));
  EXPECT_NEAR(static_cast<double>(arrived), 95000, 1000);
}

TEST(Fabric, AShaperLetsItsBurstThroughAtOnce) {
  FabricOptions options = star(2, 0);
  options.host_up = {1e6, 0, 0, 0, 10000, 0, 0};
  FabricRun world(options);
  for (uint64_t i = 0; i < 20; i++) {
    ASSERT_TRUE(world.fabric.send(0, world.make(0, i, 1, 1000, 1)));
  }
  world.run();
  ASSERT_EQ(world.arrivals.size(), 20u);
  size_t early = 0;
  for (const auto& a : world.arrivals) early += a.at <= 10'000 ? 1u : 0u;
  EXPECT_EQ(early, 10u);
  EXPECT_NEAR(static_cast<double>(world.arrivals.back().at), 10e6, 1e4);
}

uint64_t hash_of(uint64_t seed) {
  Rng rng(5);
  Net net = random_net(rng, true);
  net.options.seed = seed;
  FabricRun world(net.options);
  world.join_all();
  for (LinkId id = 0; id < world.fabric.topology().links(); id++) {
    world.fabric.set_loss(id, 0.1, 2);
  }
  for (uint64_t i = 0; i < 100; i++) {
    EXPECT_TRUE(world.fabric.send(i % net.hosts, world.make(i % net.hosts, i, 16, 500)));
  }
  world.run();
  EXPECT_GT(world.fabric.trace().steps(), 100u);
  return world.fabric.trace().value();
}

// A socket is charged for each datagram in addition to its bytes, so small ones fill it earlier.
TEST(SimNetwork, BookkeepingFillsAReceiversQueue) {
  for (const size_t bookkeeping : {size_t{0}, size_t{832}}) {
    SCOPED_TRACE(bookkeeping);
    SimOptions options;
    options.receive_budget = 16'000;
    options.bookkeeping = bookkeeping;
    options.jitter = 0;
    SimNetwork net(options);
    auto from = net.attach(), to = net.attach();
    const MulticastAddress address{1, 1, false};
    Transport& receiver = *to;
    ASSERT_TRUE(receiver.datagram().join(address).ok());
    const auto burst = [&](Transport& sender) {
      for (int i = 0; i < 300; i++) {
        ASSERT_EQ(sender.datagram().lend(address, 96).size(), 96u);
        sender.datagram().commit(96);
        ASSERT_TRUE(sender.datagram().flush());
      }
      net.advance(net.now() + kSecond);
    };
    burst(*from);
    const uint64_t room = 16'000 * 8 / 5 / (96 + bookkeeping);
    EXPECT_EQ(net.totals().delivered, room);
    EXPECT_EQ(net.totals().overflowed, 300 - room);
    // A receiver that takes them has the whole buffer again.
    struct : DatagramSink {
      void on_datagram(ConstBytes) override {}
    } sink;
    EXPECT_EQ(receiver.datagram().receive(sink, SIZE_MAX), room);
    burst(*from);
    EXPECT_EQ(net.totals().delivered, 2 * room);
  }
}

TEST(Fabric, TheSameSeedIsTheSameRun) {
  EXPECT_EQ(hash_of(1), hash_of(1));
  EXPECT_NE(hash_of(1), hash_of(2));
}

}  // namespace
}  // namespace mcast::sim
