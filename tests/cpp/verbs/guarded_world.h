// Guarded endpoints over the device in memory, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/some_identity.h"
#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {

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
  // A connection from 0 to 1 that has carried a frame.
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
  // Of the first `times` messages of so many bytes each is dropped, or what `change` makes of it.
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
