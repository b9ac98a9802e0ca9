// Guarded endpoints over the device in memory, in virtual time.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/socket_address.h"
#include "transport/some_identity.h"
#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {

// A process that only uses rdma_cm, and sends nothing after its request.
class RawConnector {
 public:
  RawConnector(FakeVerbs& fake, uint16_t port) : fake_(fake) {
    channel_ = fake.create_event_channel();
    (void)fake.create_id(channel_, &id_, nullptr, RDMA_PS_TCP);
    SocketAddress from(Endpoint{IpAddress::v4(INADDR_LOOPBACK), 0});
    SocketAddress to(Endpoint{IpAddress::v4(INADDR_LOOPBACK), port});
    (void)fake.resolve_addr(id_, from.get(), to.get(), 0);
    pd_ = fake.alloc_pd(id_->verbs);
    cq_ = fake.create_cq(id_->verbs, 64, nullptr, nullptr);
    ibv_qp_init_attr init{};
    init.qp_type = IBV_QPT_RC;
    init.send_cq = init.recv_cq = cq_;
    (void)fake.create_cm_qp(id_, pd_, &init);
  }
  RawConnector(const RawConnector&) = delete;
  RawConnector& operator=(const RawConnector&) = delete;
  ~RawConnector() {
    fake_.destroy_cm_qp(id_);
    (void)fake_.destroy_id(id_);
    (void)fake_.destroy_cq(cq_);
    (void)fake_.dealloc_pd(pd_);
    fake_.destroy_event_channel(channel_);
  }
  uint32_t number() const { return id_->qp->qp_num; }
  void ask(ConstBytes request) {
    rdma_conn_param param{};
    param.private_data = request.data();
    param.private_data_len = static_cast<uint8_t>(request.size());
    (void)fake_.connect(id_, &param);
  }
  // The last event and its data.
  std::pair<rdma_cm_event_type, Buffer> answer() {
    std::pair<rdma_cm_event_type, Buffer> last{};
    rdma_cm_event* event = nullptr;
    while (fake_.get_cm_event(channel_, &event) == 0) {
      const auto* at = static_cast<const std::byte*>(event->param.conn.private_data);
      last = {event->event, at == nullptr ? Buffer() : Buffer(at, at + 24)};
      (void)fake_.ack_cm_event(event);
    }
    return last;
  }

 private:
  FakeVerbs& fake_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

class GuardedVerbs : public ::testing::Test {
 protected:
  using Mode = crypto::Mode;

  GuardedVerbs() { world.options.rcvbuf = 1; }
  Node& add(std::shared_ptr<const crypto::Identity> identity) {
    world.options.identity = std::move(identity);
    auto made = verbs::make_transport(fake(), world.options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    transports.push_back(made->get());
    nodes.push_back(std::make_unique<Node>());
    nodes.back()->transport = std::move(*made);
    return *nodes.back();
  }
  void add_sealed(size_t count) {
    while (count-- > 0) add(some_identity(Mode::kSealed));
  }
  FakeVerbs& fake() { return *world.fake; }
  Node& node(size_t i) { return *nodes[i]; }
  const RcStats& stats(size_t i) const { return transports[i]->stream_stats(); }
  PeerId introduce(size_t from, size_t to) {
    return node(from).st().add_peer(node(to).st().address(false));
  }
  void poll(int rounds = 20) {
    while (rounds-- > 0) {
      now += kMilli;
      for (auto& n : nodes) {
        if (n->transport) n->st().poll(*n, now);
      }
    }
  }
  // Polls only this node.
  void poll_only(size_t i, Nanos time) {
    for (const Nanos end = now + time; now < end;) node(i).st().poll(*nodes[i], now += kMilli);
  }
  // Makes a connection from 0 to 1 that has carried a frame.
  void connect() {
    peer = introduce(0, 1);
    node(0).send(peer, Channel::kControl, pattern(10, 1));
    poll();
    ASSERT_EQ(node(1).frames.size(), 1u);
  }
  std::string down(size_t i) {
    EXPECT_EQ(node(i).downs.size(), 1u);
    return node(i).downs.empty() ? "" : node(i).downs[0].why.message();
  }
  void expect_working(size_t a, size_t b) {
    const size_t before = node(b).frames.size();
    node(a).send(introduce(a, b), Channel::kRepair, pattern(50000, 9));
    poll(60);
    ASSERT_EQ(node(b).frames.size(), before + 1);
    EXPECT_EQ(node(b).frames.back().data, pattern(50000, 9));
  }
  // Each of the first `times` messages of this size is passed to `change`, which may modify it; it
  // is dropped if `change` returns false.
  using Change = std::function<bool(std::vector<std::byte>&)>;
  void change_first(size_t size, Change change, int times = 1) {
    fake().on_message = [size, change = std::move(change), times](std::vector<std::byte>& bytes,
                                                                  uint32_t) mutable {
      return bytes.size() != size || times-- <= 0 || change(bytes);
    };
  }
  static bool drop(std::vector<std::byte>&) { return false; }
  static bool flip(std::vector<std::byte>& bytes) {
    bytes[bytes.size() / 2] ^= std::byte{1};
    return true;
  }

  FakeVerbsWorld world;
  Nanos now = kSecond;
  std::vector<verbs::VerbsTransport*> transports;
  std::vector<std::unique_ptr<Node>> nodes;
  PeerId peer = kNoPeer;
};

}  // namespace mcast::testing
