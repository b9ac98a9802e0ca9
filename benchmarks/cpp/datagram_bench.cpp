// Datagrams per second through UdpTransport on loopback. One thread sends a burst and receives it:
// the cost of both ends together, with and without segmentation offload, by datagram size.
// Counters: items = datagrams, bytes = UDP payload; lost = share that did not arrive (should be 0).
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstring>

#include "transport/udp/udp_transport.h"

namespace mcast {
namespace {

constexpr size_t kBurst = 256 * 1024;  // bytes in flight, well within the receive buffer

class CountingSink final : public DatagramSink {
 public:
  void on_datagram(ConstBytes datagram) override {
    ++datagrams;
    benchmark::DoNotOptimize(datagram.front());
  }
  uint64_t datagrams = 0;
};

void send_and_receive(benchmark::State& state) {
  UdpTransportOptions options;
  options.interface = "=lo";
  options.gso = state.range(1) != 0;
  options.gro = state.range(2) != 0;
  auto made = make_udp_transport(options);
  const auto pid = static_cast<uint32_t>(::getpid());
  const MulticastAddress to{pid, static_cast<uint16_t>(20000 + pid % 30000), true};
  if (!made.ok()) return state.SkipWithError(made.status().message().c_str());
  Datagram& datagram = made.value()->datagram();
  if (Status status = datagram.join(to); !status.ok()) {
    return state.SkipWithError(status.message().c_str());
  }
  const auto size = static_cast<size_t>(state.range(0));
  const size_t count = kBurst / size;
  CountingSink sink;
  uint64_t sent = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < count; ++i) {
      const Bytes lent = datagram.lend(to, size);
      if (lent.empty()) break;
      std::memset(lent.data(), static_cast<int>(i), size);
      datagram.commit(size);
      ++sent;
    }
    datagram.flush();
    while (datagram.receive(sink, kBurst) > 0) {
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(sink.datagrams));
  state.SetBytesProcessed(static_cast<int64_t>(sink.datagrams * size));
  state.counters["lost"] =
      sent == 0 ? 1.0 : 1.0 - static_cast<double>(sink.datagrams) / static_cast<double>(sent);
}

BENCHMARK(send_and_receive)
    ->ArgNames({"size", "gso", "gro"})
    ->ArgsProduct({{1408, 8896}, {0, 1}, {0, 1}});

}  // namespace
}  // namespace mcast

BENCHMARK_MAIN();
