// The transport contract over the simulated network: a star of single datagrams with ideal streams,
// and a fabric with trains and windows.
#include "crypto/library.h"
#include "sim/network/sim_identity.h"
#include "sim/network/sim_network.h"
#include "transport/transport_contract.h"

namespace mcast::testing {

struct SimWorld {
  // Without jitter, datagrams keep their order, as the suite's comparisons require.
  static SimOptions options() {
    SimOptions o;
    o.jitter = 0;
    o.receive_budget = 4 << 20;
    return o;
  }
  explicit SimWorld(const SimOptions& o = options()) : network(o) {}

  SimNetwork network;
  Nanos time = 0;

  std::unique_ptr<Transport> make() { return network.attach(); }
  Nanos now() { return time; }
  void pass(std::vector<Transport*>) {
    time += 20 * kMicro;
    network.advance(time);
  }
  MulticastAddress address(int n) { return {static_cast<uint32_t>(n + 1), 7000, false}; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Sim, TransportContract, SimWorld);

struct FabricWorld : SimWorld {
  static SimOptions over_links() {
    SimOptions o = SimWorld::options();
    SimFabric fabric;
    fabric.links.topology = sim::TopologySpec::parse("leafspine:leaves=2,spines=2", 64).value();
    fabric.links.host_up = fabric.links.host_down =
        fabric.links.inner = {1.25e9, 1000, 0, 0, 0, 0, 0};
    o.send_queue = 4 << 20;
    o.fabric = fabric;
    return o;
  }
  FabricWorld() : SimWorld(over_links()) {}
};

INSTANTIATE_TYPED_TEST_SUITE_P(Fabric, TransportContract, FabricWorld);

// The same with guarded streams, whose keys change after a few records.
template <typename World, crypto::Mode kMode>
struct GuardedWorld : World {
  std::unique_ptr<Transport> make() {
    EXPECT_TRUE(crypto::load_library().ok());
    std::unique_ptr<SimTransport> endpoint = this->network.attach();
    sim::IdentitySpec spec;
    spec.mode = kMode;
    spec.limits.packets = 7;
    spec.seed = endpoint->index();
    endpoint->guard({sim::seeded_identity(*sim::seeded_secret(1).value(), spec).value()});
    return endpoint;
  }
};
using SealedWorld = GuardedWorld<SimWorld, crypto::Mode::kSealed>;
using AuthFabricWorld = GuardedWorld<FabricWorld, crypto::Mode::kAuth>;
INSTANTIATE_TYPED_TEST_SUITE_P(SimSealed, TransportContract, SealedWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(FabricAuth, TransportContract, AuthFabricWorld);

struct Ends final : StreamSink {
  void on_frame(PeerId, Channel, ConstBytes) override { frames++; }
  void on_peer_down(PeerId peer, const Status&, bool) override { down.push_back(peer); }
  void on_stranger_gone(PeerId peer) override { strangers.push_back(peer); }
  int frames = 0;
  std::vector<PeerId> down, strangers;
};

// As over sockets, the end of a process is not reported to an endpoint without a connection to it;
// it is reported when that endpoint turns to it. An endpoint that has only received from it is told
// that a stranger is gone.
TEST(SimEnds, AreReportedToEndpointsWithAConnection) {
  SimWorld world;
  auto one = world.make(), other = world.make(), gone = world.make();
  const StreamAddress address = gone->stream().address(false);
  (void)gone->stream().add_peer(other->stream().address(false));
  const std::byte word{7};
  const ConstBytes parts[] = {{&word, 1}};
  gone->stream().send(1, Channel::kControl, parts);
  Ends heard, unmet;
  for (int i = 0; i < 100; i++) world.pass({});
  EXPECT_GT(other->stream().poll(heard, world.now()), 0u);
  EXPECT_EQ(heard.frames, 1);
  gone.reset();
  for (int i = 0; i < 100; i++) world.pass({});
  EXPECT_FALSE(world.network.waiting(0)) << "it wakes nobody";
  EXPECT_EQ(one->stream().poll(unmet, world.now()), 0u);
  EXPECT_GT(other->stream().poll(heard, world.now()), 0u);
  EXPECT_EQ(heard.strangers, std::vector<PeerId>{2});
  EXPECT_TRUE(heard.down.empty());
  for (const auto& [who, sink] : {std::pair{&one, &unmet}, {&other, &heard}}) {
    EXPECT_EQ((*who)->stream().add_peer(address), 2u);
    EXPECT_EQ((*who)->stream().poll(*sink, world.now()), 1u);
    EXPECT_EQ(sink->down, std::vector<PeerId>{2});
    EXPECT_EQ((*who)->stream().poll(*sink, world.now()), 0u) << "once";
  }
}

}  // namespace mcast::testing
