// The cost of a datagram in a lane, between the transport and the caller's memory: finding its
// group and operation, detecting duplicates, verifying and placing. The transport delivers prepared
// datagrams, a burst per poll; nothing is sent. Used to compare an old and a new build.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "collective/plan.h"
#include "runtime/lane.h"

namespace mcast {
namespace {

constexpr size_t kBurstDatagrams = 64;
constexpr size_t kChunkBytes = 1408;
constexpr Chunk kChunks = 1u << 14;
constexpr uint64_t kTag = 42;

class Bursts final : public Datagram {
 public:
  size_t max_datagram(const MulticastAddress&) const override { return 65535; }
  size_t receive_budget() const override { return 8u << 20; }
  Status join(const MulticastAddress&) override { return {}; }
  void leave(const MulticastAddress&) override {}
  Bytes lend(const MulticastAddress&, size_t, Echo) override { return {}; }
  void commit(size_t) override {}
  bool flush() override { return true; }
  size_t receive(DatagramSink& sink, size_t) override {
    size_t handed = 0;
    for (; handed < kBurstDatagrams && next < datagrams.size(); ++handed) {
      sink.on_datagram(datagrams[next++]);
    }
    return handed;
  }
  std::vector<std::vector<std::byte>> datagrams;
  size_t next = 0;
};

class Nobody final : public Stream {
 public:
  StreamAddress address(bool) const override { return {}; }
  PeerId add_peer(const StreamAddress&) override { return 0; }
  std::vector<PeerId> expect(std::span<const uint64_t>) override { return {}; }
  void keep_trying(PeerId, Nanos) override {}
  void send(PeerId, Channel, std::span<const ConstBytes>) override {}
  size_t queued(PeerId, Channel) const override { return 0; }
  size_t poll(StreamSink&, Nanos) override { return 0; }
  bool close_peers(Nanos) override { return true; }
};

class Prepared final : public Transport {
 public:
  const char* name() const override { return "prepared"; }
  Bursts& datagram() override { return bursts_; }
  Stream& stream() override { return nobody_; }
  void wait(Nanos) override {}
  void wake() noexcept override {}
  void abandon_after_fork() noexcept override {}
  std::string describe() const override { return "prepared"; }

 private:
  Bursts bursts_;
  Nobody nobody_;
};

// A broadcast from rank 1 whose chunks arrive in order. If repeated, all of them arrive once more,
// which costs only the work before their bytes are read.
void receive_chunks(benchmark::State& state) {
  const bool repeated = state.range(0) != 0;
  auto transport = std::make_unique<Prepared>();
  Bursts& bursts = transport->datagram();
  Lane lane(std::move(transport));
  GroupParams params;
  params.tag = kTag;
  params.agreed.members = 2;
  params.agreed.chunk = kChunkBytes;
  params.agreed.budget = 8u << 20;
  Nanos now = kSecond;
  GroupCore& core =
      lane.add_group(params, {{1, 1, false}, false, Echo::kOff}, {kNoPeer, 0}, now).core();
  core.adopt_path(GroupCore::Path::kMulticast, "");
  std::vector<std::byte> memory(size_t{kChunks} * kChunkBytes);
  const auto region = std::make_shared<Region>(memory.data(), memory.size(), nullptr);
  const wire::Descriptor descriptor{wire::Kind::kBroadcast, 0, 1, memory.size(), "broadcast"};
  Post post;
  post.descriptor = descriptor;
  post.outputs.push_back({region, 0, memory.size()});
  post.posted = now;
  core.post(std::move(post), now);
  wire::DatagramHeader header;
  header.group_tag = kTag;
  header.member = 1;
  header.descriptor = make_plan(descriptor, params.agreed).hash;
  const std::vector<std::byte> payload(kChunkBytes, std::byte{9});
  for (header.chunk = 0; header.chunk < kChunks; ++header.chunk) {
    bursts.datagrams.emplace_back(wire::kDatagramHeader + kChunkBytes);
    wire::write_datagram(bursts.datagrams.back(), header, payload);
  }
  const auto all = [&] {
    for (bursts.next = 0; bursts.next < bursts.datagrams.size();) lane.poll(now += kMicro);
  };
  if (repeated) all();
  for (auto _ : state) all();
  state.SetItemsProcessed(state.iterations() * kChunks);
  const Counters& counters = lane.find_group(kTag)->counters();
  state.counters["placed"] = static_cast<double>(counters.get(Counter::chunks_placed));
  state.counters["duplicates"] = static_cast<double>(counters.get(Counter::duplicates));
}
BENCHMARK(receive_chunks)->Name("ReceiveChunksInOrder")->Arg(0)->Iterations(1);
BENCHMARK(receive_chunks)->Name("ReceiveRepeatedChunks")->Arg(1)->Iterations(20);

}  // namespace
}  // namespace mcast
