// The simulated network alone: a multicast of 64 MiB from one host to all others behind leaves and
// spines, by number of hosts and of packets in a train; and one stream over a link. Counters:
// crossings and deliveries of packets, and events of the queue, per second of wall time.
#include <benchmark/benchmark.h>

#include <bit>

#include "sim/network/fabric.h"
#include "sim/network/flows.h"

namespace mcast::sim {
namespace {

constexpr double kRate = 12.5e9;  // 100 Gbit/s

FabricOptions leaves_and_spines(uint32_t hosts) {
  FabricOptions options;
  options.topology.kind = TopologySpec::Kind::kLeafSpine;
  options.topology.hosts = hosts;
  options.topology.leaves = (hosts + 31) / 32;
  options.topology.spines = 8;
  options.host_up = options.host_down = options.inner = {kRate, 500, 0, 0, 0, 0, 0};
  return options;
}

class CountingWorld final : public FabricSink, public StreamsOwner {
 public:
  explicit CountingWorld(uint32_t hosts)
      : fabric(leaves_and_spines(hosts), events, *this), flows({}, fabric, events, trains, *this) {}

  void on_train(HostId, const TrainRef& train, uint64_t mask, bool) override {
    if (train->stream.flow != kNone) return flows.on_train(train, mask);
    delivered += static_cast<uint64_t>(std::popcount(mask));
  }
  void on_departure(const Train& train) override {
    if (train.stream.flow != kNone) flows.on_departure(train);
  }
  void on_stream_frame(EndpointId from, EndpointId to, Channel channel, Frame frame) override {
    flows.on_taken(from, to, channel, frame.size());
  }
  void on_stream_closed(EndpointId, EndpointId) override {}
  Place place_of(EndpointId endpoint) const override { return {endpoint, 0, 0}; }
  TrafficClass class_of(EndpointId, Channel) const override { return TrafficClass::kControl; }

  void run() {
    while (!events.empty()) {
      const Event event = events.pop();
      if (event.kind == EventKind::kHop) fabric.on_hop(event.index);
      if (event.kind == EventKind::kNic) fabric.on_nic(event.index);
      if (event.kind == EventKind::kFlow) flows.on_event(event.kind, event.index);
    }
  }
  uint64_t crossings() const {
    uint64_t packets = 0;
    for (const LinkTraffic& link : fabric.traffic()) packets += link.all().packets;
    return packets;
  }

  EventQueue events;
  TrainPool trains;
  Fabric fabric;
  Flows flows;
  uint64_t delivered = 0;
};

void report(benchmark::State& state, const CountingWorld& world) {
  const auto rate = [](uint64_t count) {
    return benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsRate);
  };
  state.counters["events"] = rate(world.events.handled());
  state.counters["crossings"] = rate(world.crossings());
  state.counters["deliveries"] = rate(world.delivered);
}

void multicast_to_hosts(benchmark::State& state) {
  const MulticastAddress address{1, 7000, false};
  const auto hosts = static_cast<uint32_t>(state.range(0));
  const auto packets = static_cast<unsigned>(state.range(1));
  constexpr size_t kPacket = 4096 + 32;
  CountingWorld world(hosts);
  for (HostId h = 0; h < hosts; h++) world.fabric.router().join(0, address, h);
  for (auto _ : state) {
    for (size_t left = (64u << 20) / 4096; left > 0; left -= std::min<size_t>(left, packets)) {
      const TrainRef train = world.trains.make();
      train->overhead = 66;
      train->plane = 0;
      for (unsigned i = 0; i < packets; i++) train->add(kPacket);
      train->tree = world.fabric.router().tree_for(0, address, 0, &train->root_level);
      (void)world.fabric.send(0, train);
    }
    world.run();
  }
  report(state, world);
}

void stream_to_host(benchmark::State& state) {
  CountingWorld world(64);
  for (auto _ : state) {
    for (size_t at = 0; at < (64u << 20); at += 65536) {
      world.flows.send(0, 63, Channel::kRepair, Frame(65536));
    }
    world.run();
  }
  report(state, world);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * (64 << 20));
}

BENCHMARK(multicast_to_hosts)
    ->ArgNames({"hosts", "train"})
    ->Args({64, 16})
    ->Args({1024, 1})
    ->Args({1024, 16})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(stream_to_host)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mcast::sim
