// Datagram endpoints of one process over the device in memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {

class VerbsDatagram : public ::testing::Test {
 protected:
  VerbsDatagram() { world.options.join_patience = 50 * kMilli; }
  Node& add() {
    nodes.push_back(std::make_unique<Node>());
    auto made = verbs::make_transport(fake(), world.options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    transports.push_back(made->get());
    nodes.back()->transport = std::move(*made);
    return *nodes.back();
  }
  FakeVerbs& fake() { return *world.fake; }
  void poll(int rounds = 3) {
    while (rounds-- > 0) {
      now += kMilli;
      for (auto& n : nodes) {
        n->st().poll(*n, now);
        n->dg().receive(*n, 1 << 20);
        n->dg().flush();
      }
    }
  }
  void send(Node& n, const Buffer& data) { ASSERT_TRUE(offer(n, group, data)); }
  // Returns false if the endpoint accepts no datagram for this group now.
  static bool offer(Node& n, const MulticastAddress& to, const Buffer& data) {
    const Bytes lent = n.dg().lend(to, data.size());
    if (lent.size() != data.size()) return false;
    std::copy(data.begin(), data.end(), lent.begin());
    n.dg().commit(data.size());
    return true;
  }
  const UdStats& stats(size_t i) const { return transports[i]->datagram_stats(); }

  FakeVerbsWorld world;
  Nanos now = kSecond;
  std::vector<verbs::VerbsTransport*> transports;
  std::vector<std::unique_ptr<Node>> nodes;
  const MulticastAddress group{77, 4711, false};
};

// Restores the process's memory lock limit.
struct MemlockLimit {
  rlimit before{};
  explicit MemlockLimit(rlim_t soft) {
    (void)::getrlimit(RLIMIT_MEMLOCK, &before);
    const rlimit now{std::min(soft, before.rlim_max), before.rlim_max};
    (void)::setrlimit(RLIMIT_MEMLOCK, &now);
  }
  ~MemlockLimit() { (void)::setrlimit(RLIMIT_MEMLOCK, &before); }
};

}  // namespace mcast::testing
