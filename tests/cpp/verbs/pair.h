// Two endpoints on one device in memory, in virtual time; the first knows the second.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {

struct ReadingNode : Node {
  std::vector<std::pair<uint64_t, Buffer>> reads;
  void on_read(PeerId, uint64_t token, ConstBytes bytes) override {
    reads.emplace_back(token, to_buffer(bytes));
  }
};

struct Pair {
  Pair() {
    for (int i = 0; i < 2; ++i) {
      auto made = verbs::make_transport(fake(), world.options);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      transports.push_back(made->get());
      nodes[i].transport = std::move(*made);
    }
    peer = nodes[0].st().add_peer(nodes[1].st().address(false));
  }
  FakeVerbs& fake() { return *world.fake; }
  void poll(int rounds = 12) {
    while (rounds-- > 0) {
      now += kMilli;
      for (ReadingNode& n : nodes) {
        if (n.transport) n.st().poll(n, now);
      }
    }
  }
  // Makes a connection that has carried a frame.
  void connect() {
    nodes[0].send(peer, Channel::kControl, pattern(10, 1));
    poll();
    ASSERT_EQ(nodes[1].frames.size(), 1u);
  }
  std::string down(size_t i) {
    EXPECT_EQ(nodes[i].downs.size(), 1u);
    return nodes[i].downs.empty() ? "" : nodes[i].downs[0].why.message();
  }

  FakeVerbsWorld world;
  Nanos now = kSecond;
  std::vector<verbs::VerbsTransport*> transports;
  ReadingNode nodes[2];
  PeerId peer = kNoPeer;
};

}  // namespace mcast::testing
