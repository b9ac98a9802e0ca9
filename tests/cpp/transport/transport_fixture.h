// Endpoints of a transport in one process, for the contract's suite
// (transport/transport_contract.h, which defines a World) and for tests of one transport. One
// thread drives everything: pump() polls all endpoints until a condition holds, or gives up after a
// bounded number of idle rounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "transport/transport.h"

namespace mcast::testing {

using Buffer = std::vector<std::byte>;

inline Buffer pattern(size_t size, uint64_t seed) {
  Buffer out(size);
  Rng rng(seed * 1'000'003 + size);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.next());
  return out;
}

inline Buffer to_buffer(ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

// One endpoint and what it has received.
struct Node : DatagramSink, StreamSink {
  struct Frame {
    PeerId peer;
    Channel channel;
    Buffer data;
  };
  struct Down {
    PeerId peer;
    Status why;
    bool graceful;
  };

  std::unique_ptr<Transport> transport;
  std::vector<Buffer> datagrams;
  std::vector<Frame> frames;
  std::vector<Down> downs;
  std::vector<PeerId> strangers_gone;
  std::vector<std::pair<Cause, Source>> refusals;

  void on_datagram(ConstBytes d) override { datagrams.push_back(to_buffer(d)); }
  void on_frame(PeerId peer, Channel channel, ConstBytes f) override {
    frames.push_back({peer, channel, to_buffer(f)});
  }
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override {
    downs.push_back({peer, why, graceful});
  }
  void on_stranger_gone(PeerId peer) override { strangers_gone.push_back(peer); }
  void on_refused(Cause cause, Source source) override { refusals.emplace_back(cause, source); }

  Datagram& dg() { return transport->datagram(); }
  Stream& st() { return transport->stream(); }
  void send(PeerId peer, Channel channel, ConstBytes bytes) {
    const ConstBytes parts[] = {bytes};
    st().send(peer, channel, parts);
  }
  std::vector<Buffer> frames_on(Channel channel) const {
    std::vector<Buffer> out;
    for (const Frame& f : frames) {
      if (f.channel == channel) out.push_back(f.data);
    }
    return out;
  }
};

template <typename World>
constexpr bool drops_echo() {
  if constexpr (requires { World::kDropsEcho; }) return World::kDropsEcho;
  return false;
}

template <typename World>
class TransportContract : public ::testing::Test {
 protected:
  static constexpr int kIdleRounds = 4000;

  void make_nodes(int n) {
    while (n-- > 0) {
      nodes_.push_back(std::make_unique<Node>());
      nodes_.back()->transport = world_.make();
      ASSERT_NE(nodes_.back()->transport, nullptr);
    }
  }
  Node& node(size_t i) { return *nodes_[i]; }
  PeerId introduce(size_t from, size_t to) {
    return node(from).st().add_peer(node(to).st().address(true));
  }

  size_t poll_all() {
    size_t events = 0;
    for (auto& n : nodes_) {
      if (!n->transport) continue;
      events += n->dg().receive(*n, 1 << 20);
      events += n->st().poll(*n, world_.now());
    }
    return events;
  }
  bool pump(const std::function<bool()>& done) {
    for (int idle = 0; idle < kIdleRounds;) {
      if (done()) return true;
      if (poll_all() > 0) {
        idle = 0;
        continue;
      }
      ++idle;
      pass();
    }
    return done();
  }
  // Polls until nothing has happened for a while, to show that something does not arrive.
  void settle(int rounds = 50) {
    for (int idle = 0; idle < rounds;) {
      if (poll_all() > 0) {
        idle = 0;
      } else {
        ++idle;
        pass();
      }
    }
  }
  void pass() {
    std::vector<Transport*> all;
    for (auto& n : nodes_) {
      if (n->transport) all.push_back(n->transport.get());
    }
    world_.pass(all);
  }
  bool send_datagram(Node& n, const MulticastAddress& to, const Buffer& data,
                     Echo echo = Echo::kOn) {
    for (int i = 0; i < kIdleRounds; ++i) {
      const Bytes lent = n.dg().lend(to, data.size(), echo);
      if (!lent.empty()) {
        std::copy(data.begin(), data.end(), lent.begin());
        n.dg().commit(data.size());
        return true;
      }
      poll_all();
      pass();
    }
    return false;
  }
  bool flush(Node& n) {
    return pump([&] { return n.dg().flush(); });
  }
  bool close(Node& n) {
    return pump([&] { return n.st().close_peers(world_.now()); });
  }

  World world_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace mcast::testing
