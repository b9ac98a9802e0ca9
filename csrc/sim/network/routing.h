// Computes the paths of trains. Unicast: up to the lowest level that covers both hosts and down
// again; column and parallel links by a hash of (seed, from, to, channel), so that a stream keeps
// its path and its order. Multicast: one tree for each address, in whose column all paths meet; it
// carries a train of any member both ways, each link once (InfiniBand, BIDIR-PIM, a bridge). With
// `by_source` the column depends on the sender too.
//
// Members are hosts, counted: a host is a member as long as one of its endpoints is. Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/network/topology.h"

namespace mcast::sim {

struct Tree {
  uint64_t key = 0;  // hash of the address
  uint16_t plane = 0;
  std::array<uint32_t, Topology::kMostLevels + 1> column{};  // by level
  uint64_t version = 0;
  // By switch: links down towards members.
  std::vector<std::vector<LinkId>> down;
};

class Router {
 public:
  Router(const Topology& topology, uint64_t seed, bool by_source)
      : topology_(topology), seed_(seed), by_source_(by_source) {}

  Route unicast(unsigned plane, HostId from, HostId to, unsigned channel) const;

  void join(unsigned plane, const MulticastAddress& address, HostId host);
  void leave(unsigned plane, const MulticastAddress& address, HostId host);

  // Returns the tree for datagrams from `from`, member or not, to `address`, created or brought up
  // to date. `root_level`: how high this train must climb.
  uint32_t tree_for(unsigned plane, const MulticastAddress& address, HostId from,
                    uint8_t* root_level);
  const Tree& tree(uint32_t index) const { return trees_[index]; }
  // The link up from a switch below the root; its block is of level `level - 1`.
  LinkId tree_up(const Tree& tree, unsigned level, uint32_t child) const;

 private:
  struct Group {
    uint64_t version = 1;
    std::map<HostId, uint32_t> members;    // with how many endpoints
    std::map<uint32_t, uint32_t> tree_of;  // by column of the top level
  };
  using GroupKey = std::pair<MulticastAddress, uint16_t>;

  uint32_t group_at(unsigned plane, const MulticastAddress& address);
  void grow_tree(Tree& tree, const Group& group) const;

  const Topology& topology_;
  uint64_t seed_;
  bool by_source_;
  std::map<GroupKey, uint32_t> group_of_;
  std::vector<Group> groups_;
  std::vector<Tree> trees_;
};

}  // namespace mcast::sim
