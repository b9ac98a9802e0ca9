// Links and routes: the numbers of edges of the paper's topologies (ring, multicast tree, recursive
// doubling), connected routes and trees that reach exactly the right hosts, and valid
// specifications.
#include "sim/network/topology.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <set>

#include "base/rng.h"
#include "sim/network/routing.h"

namespace mcast::sim {
namespace {

const MulticastAddress kTreeAddress{5, 7000, false};

Topology make(const std::string& text, uint32_t hosts) {
  const auto spec = TopologySpec::parse(text, hosts);
  EXPECT_TRUE(spec.ok()) << spec.status().to_string();
  return Topology(spec.value());
}

uint64_t hops(const Router& router, HostId from, HostId to) {
  return router.unicast(0, from, to, 0).length;
}

// The links that a multicast of `from` crosses, and the hosts that it reaches, as the fabric
// forwards it.
std::multiset<LinkId> flood(const Topology& topology, Router& router, HostId from,
                            std::multiset<HostId>* reached) {
  uint8_t root = 0;
  const Tree& tree = router.tree(router.tree_for(0, kTreeAddress, from, &root));
  std::multiset<LinkId> crossed;
  std::vector<LinkId> next{topology.host_link(0, from)};
  while (!next.empty()) {
    const LinkId in = next.back();
    next.pop_back();
    crossed.insert(in);
    const Link& link = topology.link(in);
    if (link.level == 1 && !link.up) {
      reached->insert(link.child);
      continue;
    }
    const Switch here = link.up ? topology.upper(link) : topology.lower(link);
    for (const LinkId down : tree.down[topology.id(here)]) {
      if (down != Topology::reverse(in)) next.push_back(down);
    }
    if (link.up && here.level < root) {
      next.push_back(router.tree_up(tree, here.level + 1u, here.block));
    }
  }
  return crossed;
}

struct Edges {
  uint64_t ring = 0, tree = 0, doubling = 0;
};

// Link crossings of an all-gather of one block per host.
Edges count(const Topology& topology) {
  const uint32_t n = topology.hosts();
  Router router(topology, 1, false);
  for (HostId h = 0; h < n; h++) router.join(0, kTreeAddress, h);
  Edges edges;
  for (HostId h = 0; h < n; h++) {
    edges.ring += (n - 1) * hops(router, h, (h + 1) % n);
    if (std::has_single_bit(n)) {
      for (uint32_t step = 1; step < n; step *= 2)
        edges.doubling += step * hops(router, h, h ^ step);
    }
  }
  std::multiset<HostId> reached;
  for (const HostId from : {HostId{0}, n / 2, n - 1}) {
    const auto crossed = flood(topology, router, from, &reached);
    edges.tree = crossed.size();
  }
  EXPECT_EQ(reached.size(), 3 * (n - 1));
  return edges;
}

double ratio(uint64_t all, uint32_t hosts, uint64_t tree) {
  return static_cast<double>(all) / static_cast<double>(hosts * tree);
}

// Section 8 of the design: radix 32, with pods of 32 hosts as in the paper's script, and of 256.
TEST(Topology, EdgesOfTheFatTreeArePublishedOnes) {
  struct Row {
    uint32_t hosts;
    uint64_t tree_small, tree_large;
    double ring, doubling_small, doubling_large;
  };
  const Row rows[] = {{16, 16, 16, 1.875, 1.875, 1.875},      {32, 34, 34, 1.938, 2.765, 2.765},
                      {64, 70, 68, 1.969, 4.086, 3.265},      {128, 140, 136, 1.984, 4.786, 3.515},
                      {256, 280, 272, 1.992, 5.136, 3.640},   {512, 560, 546, 1.996, 5.311, 4.626},
                      {1024, 1120, 1092, 1.998, 5.398, 5.126}};
  for (const Row& row : rows) {
    const Edges small = count(make("fattree:radix=32,pod=32", row.hosts));
    EXPECT_EQ(small.tree, row.tree_small) << row.hosts;
    EXPECT_NEAR(ratio(small.ring, row.hosts, small.tree), row.ring, 0.0006) << row.hosts;
    EXPECT_NEAR(ratio(small.doubling, row.hosts, small.tree), row.doubling_small, 0.0006)
        << row.hosts;
    const Edges large = count(make("fattree:radix=32", row.hosts));
    EXPECT_EQ(large.tree, row.tree_large) << row.hosts;
    EXPECT_NEAR(ratio(large.ring, row.hosts, large.tree), row.ring, 0.0006) << row.hosts;
    EXPECT_NEAR(ratio(large.doubling, row.hosts, large.tree), row.doubling_large, 0.0006)
        << row.hosts;
  }
}

TEST(Topology, The188HostsOnLeavesAndSpines) {
  for (const char* text :
       {"leafspine:leaves=12,spines=6,links=3", "leafspine:leaves=12,spines=1"}) {
    const Edges edges = count(make(text, 188));
    EXPECT_EQ(edges.tree, 200u);
    EXPECT_EQ(edges.ring, 400u * 187);
    EXPECT_NEAR(ratio(edges.ring, 188, edges.tree), 1.989, 0.0006);
  }
}

TEST(Topology, ARouteIsConnectedAndEndsWhereItShould) {
  Rng rng(3);
  for (const char* text : {"star:planes=2", "leafspine:leaves=5,spines=3,links=2,planes=2",
                           "fattree:radix=8,planes=2", "fattree:radix=8,pod=8,cores=3"}) {
    const Topology topology = make(text, 61);
    const Router router(topology, 9, false);
    std::map<LinkId, int> used;
    for (int i = 0; i < 3000; i++) {
      const auto from = static_cast<HostId>(rng.below(61)), to = static_cast<HostId>(rng.below(61));
      if (from == to) continue;
      const auto plane = static_cast<unsigned>(rng.below(topology.planes()));
      const Route route = router.unicast(plane, from, to, static_cast<unsigned>(rng.below(3)));
      ASSERT_GE(route.length, 2);
      EXPECT_EQ(route.links[0], topology.host_link(plane, from));
      EXPECT_EQ(route.links[route.length - 1u], Topology::reverse(topology.host_link(plane, to)));
      for (unsigned k = 0; k + 1 < route.length; k++) {
        const Link& a = topology.link(route.links[k]);
        const Link& b = topology.link(route.links[k + 1u]);
        const Switch end = a.up ? topology.upper(a) : topology.lower(a);
        const Switch begin = b.up ? topology.lower(b) : topology.upper(b);
        EXPECT_EQ(topology.id(end), topology.id(begin)) << text << " hop " << k;
        used[route.links[k]]++;
      }
    }
    if (topology.levels() > 1) {
      // Equal-cost paths are all used: every link down to some leaf, and each parallel one.
      for (LinkId id = 0; id < topology.links(); id++) {
        if (topology.link(id).level == 2 && topology.planes() == 2) {
          EXPECT_GT(used[id], 0) << text << " link " << id;
        }
      }
    }
  }
}

TEST(Topology, ATreeReachesEachMemberOnceWhoeverSends) {
  Rng rng(4);
  for (const char* text : {"star", "leafspine:leaves=5,spines=3,links=2", "fattree:radix=8",
                           "fattree:radix=8,pod=8,cores=3"}) {
    const Topology topology = make(text, 61);
    for (const bool by_source : {false, true}) {
      Router router(topology, 1, by_source);
      std::set<HostId> members;
      for (int round = 0; round < 200; round++) {
        const auto who = static_cast<HostId>(rng.below(61));
        if (members.erase(who) > 0) {
          router.leave(0, kTreeAddress, who);
        } else {
          members.insert(who);
          router.join(0, kTreeAddress, who);
        }
        const auto from = static_cast<HostId>(rng.below(61));
        std::multiset<HostId> reached;
        const auto crossed = flood(topology, router, from, &reached);
        std::multiset<HostId> want(members.begin(), members.end());
        want.erase(from);
        ASSERT_EQ(reached, want) << text << " round " << round;
        const std::set<LinkId> once(crossed.begin(), crossed.end());
        ASSERT_EQ(once.size(), crossed.size()) << "a link is crossed once";
      }
    }
  }
}

TEST(Topology, AStarGrowsByOneHostAndItsLink) {
  Topology topology = make("star", 2);
  EXPECT_EQ(topology.grow(), 2u);
  EXPECT_EQ(topology.hosts(), 3u);
  EXPECT_EQ(topology.link(topology.host_link(0, 2)).child, 2u);
  EXPECT_EQ(topology.cover(0, 2), 1u);
}

TEST(Topology, SpecificationsThatCannotBeAreRefusedInOneLine) {
  for (const char* text :
       {"", "mesh", "star:leaves=2", "leafspine", "leafspine:leaves=0,spines=1",
        "leafspine:leaves=2,spines=x", "leafspine:leaves=2,spines", "fattree:radix=7",
        "fattree:radix=8,pod=6", "fattree:radix=8,spines=2", "star:planes=0", "star:planes=99",
        "leafspine:leaves=2,spines=-1", "fattree:radix=131072", "fattree:radix=65536,pod=32768",
        "leafspine:leaves=2,spines=65536,links=65536"}) {
    const auto spec = TopologySpec::parse(text, 8);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(spec.status().message().rfind("topology: ", 0), 0u) << spec.status().message();
  }
  EXPECT_FALSE(TopologySpec::parse("fattree:radix=8", 0).ok());
}

TEST(Topology, ClassesOfLinksHaveNames) {
  const Topology topology = make("fattree:radix=4", 16);
  std::set<std::string> names;
  for (LinkId id = 0; id < topology.links(); id++)
    names.insert(topology.class_name(topology.link(id)));
  EXPECT_EQ(names, (std::set<std::string>{"host-leaf up", "host-leaf down", "leaf-pod up",
                                          "leaf-pod down", "pod-core up", "pod-core down"}));
}

}  // namespace
}  // namespace mcast::sim
