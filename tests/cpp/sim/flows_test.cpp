// Streams over the fabric. They lose nothing and keep their order whatever links lose, fill a link,
// share it, slow down after losses as TCP does, report their queues, stop for a reader that does
// not read, and end as requested.
#include "sim/network/flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace mcast::sim {
namespace {

// One endpoint per host by default.
class StreamWorld final : public FabricSink, public StreamsOwner {
 public:
  explicit StreamWorld(const FabricOptions& links, const FlowOptions& options = {})
      : fabric(links, events, *this), flows(options, fabric, events, trains, *this) {}

  struct Arrival {
    EndpointId from, to;
    Channel channel;
    Frame frame;
    Nanos at;
  };

  void on_train(HostId, const TrainRef& train, uint64_t mask, bool) override {
    flows.on_train(train, mask);
  }
  void on_departure(const Train& train) override { flows.on_departure(train); }
  void on_stream_frame(EndpointId from, EndpointId to, Channel channel, Frame frame) override {
    bytes += frame.size();
    if (read) flows.on_taken(from, to, channel, frame.size());
    if (keep) arrivals.push_back({from, to, channel, std::move(frame), events.now()});
  }
  void on_stream_closed(EndpointId from, EndpointId) override { closed.push_back(from); }
  TrafficClass class_of(EndpointId, Channel channel) const override {
    return channel == Channel::kControl ? TrafficClass::kControl : TrafficClass::kRepair;
  }
  Place place_of(EndpointId endpoint) const override { return {endpoint / per_host, 0, 0}; }

  void run(Nanos until) {
    while (!events.empty() && events.next() <= until) {
      const Event event = events.pop();
      if (event.kind == EventKind::kHop) fabric.on_hop(event.index);
      if (event.kind == EventKind::kNic) fabric.on_nic(event.index);
      if (event.kind == EventKind::kFlow || event.kind == EventKind::kFrame) {
        flows.on_event(event.kind, event.index);
      }
    }
    events.move_to(until);
  }
  // Sends `size` bytes in frames of 64 KiB.
  void send(EndpointId from, EndpointId to, size_t size, Channel channel = Channel::kRepair) {
    for (size_t at = 0; at < size; at += 65536) {
      flows.send(from, to, channel, Frame(std::min<size_t>(65536, size - at)));
    }
  }
  LinkId down(HostId host) const { return Topology::reverse(fabric.topology().host_link(0, host)); }

  uint32_t per_host = 1;
  EventQueue events;
  TrainPool trains;
  Fabric fabric;
  Flows flows;
  bool read = true, keep = true;
  uint64_t bytes = 0;
  std::vector<Arrival> arrivals;
  std::vector<EndpointId> closed;
};

FabricOptions links(uint32_t hosts, double rate, double delay = 5000) {
  FabricOptions options;
  options.topology.hosts = hosts;
  options.host_up = options.host_down = options.inner = {rate, delay, 0, 0, 0, 0, 0};
  return options;
}

Frame random_frame(Rng& rng) {
  Frame frame(1 + rng.below(rng.chance(0.2) ? 60000 : 300));
  for (std::byte& b : frame) b = static_cast<std::byte>(rng.next());
  return frame;
}

TEST(Flows, FramesArriveWholeAndInOrderWhateverIsLost) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    Rng rng(seed);
    FabricOptions net = links(6, rng.chance(0.5) ? 1.25e8 : 1.25e9);
    net.topology = TopologySpec::parse("leafspine:leaves=3,spines=2", 6).value();
    net.seed = seed;
    if (rng.chance(0.3)) net.nic_limit = 20000;
    if (rng.chance(0.5)) net.host_down.queue = 30000;
    FlowOptions options;
    options.cork = rng.chance(0.5);
    StreamWorld world(net, options);
    const double loss = std::vector<double>{0, 0.001, 0.02, 0.05}[rng.below(4)];
    for (LinkId id = 0; id < world.fabric.topology().links(); id++) {
      world.fabric.set_loss(id, loss, rng.chance(0.5) ? 4 : 1);
    }
    std::map<std::tuple<EndpointId, EndpointId, Channel>, std::vector<Frame>> sent, arrived;
    for (int i = 0; i < 150; i++) {
      const auto from = static_cast<EndpointId>(rng.below(6));
      const auto to = static_cast<EndpointId>((from + 1 + rng.below(5)) % 6);
      const auto channel = static_cast<Channel>(rng.below(kChannels));
      Frame frame = random_frame(rng);
      sent[{from, to, channel}].push_back(frame);
      world.flows.send(from, to, channel, std::move(frame));
      if (rng.chance(0.3)) world.run(world.events.now() + static_cast<Nanos>(rng.below(kMilli)));
    }
    world.run(world.events.now() + 3000 * kSecond);
    for (auto& a : world.arrivals) {
      arrived[{a.from, a.to, a.channel}].push_back(std::move(a.frame));
    }
    ASSERT_EQ(arrived, sent) << "seed " << seed << " loss " << loss;
    EXPECT_TRUE(world.events.empty()) << "timers end";
    EXPECT_TRUE(world.fabric.idle());
    EXPECT_EQ(world.trains.used(), 0u);
  }
}

TEST(Flows, OneStreamFillsALink) {
  constexpr size_t kSize = 64 << 20;
  StreamWorld world(links(2, 1.25e9));
  world.keep = false;
  world.send(0, 1, kSize);
  while (world.bytes < kSize && world.events.now() < kSecond) {
    world.run(world.events.now() + 10 * kMicro);
  }
  const double wire = static_cast<double>(kSize) * (1448 + 90) / 1448;
  EXPECT_NEAR(static_cast<double>(world.events.now()), wire / 1.25e9 * 1e9, 0.02 * kSecond / 20);
  EXPECT_EQ(world.flows.totals().again, 0u);
  const LinkTraffic& back = world.fabric.traffic()[world.down(0)];
  const Amount acks = back.of[static_cast<size_t>(TrafficClass::kAck)];
  EXPECT_GE(acks.packets, kSize / 1448 / 2);
  EXPECT_LE(acks.packets, kSize / 1448) << "one acknowledgement per two packets";
  EXPECT_EQ(acks.bytes, acks.packets * 90);
}

// 1.22 segments / (round trip x square root of the loss): Mathis et al. 1997.
TEST(Flows, TheRateUnderLossIsThatOfReno) {
  for (const double loss : {3e-4, 1e-3, 3e-3}) {
    FlowOptions options;
    options.interface = 1 << 30;
    StreamWorld world(links(2, 0, 5e6), options);  // 20 ms round trip, no link is full
    world.keep = false;
    world.fabric.set_loss(world.down(1), loss, 1);
    const Nanos time = 600 * kSecond;
    size_t queued = 0;
    for (Nanos t = 0; t < time; t += 100 * kMilli) {
      while ((queued = world.flows.queued(0, 1, Channel::kRepair)) < (4 << 20)) {
        world.send(0, 1, 1 << 20);
      }
      world.run(t);
    }
    const double rate = static_cast<double>(world.bytes) / (static_cast<double>(time) / 1e9);
    const double want = 1.22 * 1448 / (0.020 * std::sqrt(loss));
    EXPECT_NEAR(rate, want, 0.2 * want) << "loss " << loss << ", " << rate / want << " of it";
  }
}

TEST(Flows, StreamsShareALink) {
  StreamWorld world(links(4, 1.25e8));
  world.keep = false;
  uint64_t got[3] = {};
  for (EndpointId from = 0; from < 3; from++) world.send(from, 3, 30 << 20);
  world.keep = true;
  world.run(300 * kMilli);
  for (const auto& a : world.arrivals) got[a.from] += a.frame.size();
  const double third = 1.25e8 * 0.3 / 3 * 1448 / 1538;
  for (const uint64_t bytes : got) EXPECT_NEAR(static_cast<double>(bytes), third, 0.25 * third);
}

TEST(Flows, BytesBeyondTheMediumAreQueued) {
  StreamWorld world(links(2, 1.25e8));
  EXPECT_EQ(world.flows.queued(0, 1, Channel::kRepair), 0u);
  world.send(0, 1, 64 << 10);
  EXPECT_EQ(world.flows.queued(0, 1, Channel::kRepair), 0u) << "the low-water mark";
  world.send(0, 1, 1 << 20);
  const size_t first = 10 * 1448;  // the first window
  EXPECT_EQ(world.flows.queued(0, 1, Channel::kRepair), (1u << 20) - first);
  EXPECT_EQ(world.flows.queued(0, 1, Channel::kReduce), 0u);
  EXPECT_EQ(world.flows.queued(1, 0, Channel::kRepair), 0u);
  size_t before = world.flows.queued(0, 1, Channel::kRepair);
  while (before > 0) {
    world.run(world.events.now() + kMilli);
    const size_t now = world.flows.queued(0, 1, Channel::kRepair);
    ASSERT_LT(now, before);
    before = now;
  }
}

// As Linux does with tcp_autocorking: data written while data of the stream waits at this host's
// interface leaves as whole segments, and the last part when the interface has sent it.
TEST(Flows, SmallWritesWaitForEarlierOnesAtTheInterface) {
  const auto segments = [](bool cork) {
    FlowOptions options;
    options.cork = cork;
    StreamWorld world(links(2, 1e6), options);
    world.flows.send(0, 1, Channel::kControl, Frame(38));
    for (int i = 0; i < 50; i++) world.flows.send(0, 1, Channel::kControl, Frame(40));
    world.run(kSecond);
    EXPECT_EQ(world.arrivals.size(), 51u);
    EXPECT_EQ(world.bytes, 38u + 50 * 40u);
    EXPECT_TRUE(world.events.empty());
    return world.flows.totals().segments;
  };
  // 38 bytes, which leave at once; 40 bytes behind them; 1448 and 512 bytes when those have left.
  EXPECT_EQ(segments(true), 4u);
  EXPECT_GT(segments(false), 10u);
}

TEST(Flows, AReaderThatDoesNotReadStopsTheSender) {
  FlowOptions options;
  options.window = 256 * 1024;
  StreamWorld world(links(2, 1.25e9), options);
  world.read = false;
  world.send(0, 1, 4 << 20);
  world.run(10 * kSecond);
  EXPECT_LE(world.bytes, options.window + 65536);
  EXPECT_GE(world.bytes, options.window - 65536);
  EXPECT_GT(world.flows.queued(0, 1, Channel::kRepair), 3u << 20);
  world.read = true;
  world.flows.on_taken(0, 1, Channel::kRepair, world.bytes);
  world.run(20 * kSecond);
  EXPECT_EQ(world.bytes, 4u << 20);
}

TEST(Flows, ALostTailIsSentAgainAfterTwoRoundTrips) {
  StreamWorld world(links(2, 1.25e9, 50e3));
  world.send(0, 1, 1000);
  world.run(10 * kMilli);
  const Nanos trip = world.arrivals.back().at * 2;
  world.fabric.set_loss(world.down(1), 1, 1);
  world.send(0, 1, 1000);
  const Nanos sent = world.events.now();
  world.run(sent + trip);
  world.fabric.set_loss(world.down(1), 0, 1);
  world.run(sent + kSecond);
  ASSERT_EQ(world.arrivals.size(), 2u);
  EXPECT_NEAR(static_cast<double>(world.arrivals[1].at - sent), 2.5 * static_cast<double>(trip),
              0.3 * static_cast<double>(trip));
}

TEST(Flows, AfterAnOutageTimersCarryOn) {
  StreamWorld world(links(2, 1.25e9));
  world.send(0, 1, 1 << 20);
  world.run(100 * kMicro);
  world.flows.hold(1, true);
  const uint64_t before = world.bytes;
  world.run(2 * kSecond);
  EXPECT_EQ(world.bytes, before);
  EXPECT_LT(world.flows.totals().timeouts, 10u) << "intervals double";
  world.flows.hold(1, false);
  world.run(10 * kSecond);
  EXPECT_EQ(world.bytes, 1u << 20);
}

TEST(Flows, AnOutageIsOneForNeighboursOnAHostToo) {
  StreamWorld world(links(1, 1.25e9));
  world.per_host = 2;
  world.flows.hold(1, true);
  world.send(0, 1, 200'000);
  world.run(kSecond);
  EXPECT_EQ(world.bytes, 0u);
  world.flows.hold(1, false);
  world.run(2 * kSecond);
  EXPECT_EQ(world.bytes, 200'000u);
}

TEST(Flows, EndsAreReportedAfterTheLastFrame) {
  StreamWorld world(links(3, 1.25e8));
  world.send(0, 1, 1 << 20);
  world.flows.close(0, 1);
  world.flows.close(2, 1);
  world.run(5 * kMilli);
  EXPECT_EQ(world.closed, std::vector<EndpointId>{2});
  world.run(kSecond);
  EXPECT_EQ(world.closed, (std::vector<EndpointId>{2, 0}));
  EXPECT_EQ(world.bytes, 1u << 20);
}

TEST(Flows, CutOrDeadStreamsDeliverNothing) {
  for (const bool dead : {false, true}) {
    StreamWorld world(links(3, 1.25e8));
    world.send(0, 1, 1 << 20);
    world.send(0, 2, 1000);
    world.run(kMilli);
    const uint64_t before = world.bytes;
    if (dead) {
      world.flows.drop(1);
    } else {
      world.flows.cut(0, 1);
    }
    world.send(0, 1, 1000);
    world.run(100 * kSecond);
    EXPECT_EQ(world.bytes, before);
    EXPECT_EQ(world.flows.queued(0, 1, Channel::kRepair), 0u);
    world.send(0, 2, 1000);
    world.run(101 * kSecond);
    EXPECT_EQ(world.bytes, before + 1000);
    EXPECT_TRUE(world.events.empty());
  }
}

TEST(Flows, EndpointsOfOneHostUseNoLink) {
  StreamWorld world(links(2, 1e6));
  world.per_host = 2;
  world.send(0, 1, 1 << 20);
  world.run(20 * kMicro);
  EXPECT_EQ(world.bytes, 1u << 20);
  EXPECT_EQ(world.fabric.traffic()[world.fabric.topology().host_link(0, 0)].all().packets, 0u);
}

}  // namespace
}  // namespace mcast::sim
