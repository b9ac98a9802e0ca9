// A path is determined by one column of its highest level, since each switch is linked to one
// column of the level below. A tree has a column of the topology's highest level, hence one of
// every level: its links are those from the members' hosts up through these columns. At each switch
// the tree marks the links down that lead to members. A train that arrives by one link leaves by
// all other marked ones, and up unless this switch is the root for its sender and the members.
#include "sim/network/routing.h"

#include <algorithm>

#include "base/rng.h"

namespace mcast::sim {

namespace {

uint64_t address_key(const MulticastAddress& address, unsigned plane) {
  return mix64((uint64_t{address.group} << 32 | uint64_t{address.port} << 16 | plane) +
               0x9e3779b97f4a7c15ULL);
}

}  // namespace

Route Router::unicast(unsigned plane, HostId from, HostId to, unsigned channel) const {
  Route route;
  const uint64_t hash = mix64(mix64(mix64(seed_ + from) + to) + channel + 1);
  const unsigned top = topology_.cover(std::min(from, to), std::max(from, to));
  uint32_t column = static_cast<uint32_t>(hash % topology_.columns(top));
  route.length = static_cast<uint8_t>(2 * top);
  for (unsigned level = top; level >= 1; level--) {
    const auto parallel = static_cast<uint32_t>((hash >> 32) % topology_.parallel(level));
    const unsigned step = level - 1;
    const auto child = [&](HostId host) {
      return level == 1 ? host : topology_.block_of(step, host);
    };
    route.links[step] = topology_.up_link(plane, level, child(from), column, parallel);
    route.links[route.length - level] =
        Topology::reverse(topology_.up_link(plane, level, child(to), column, parallel));
    if (level > 1) column = topology_.below(level, column);
  }
  return route;
}

uint32_t Router::group_at(unsigned plane, const MulticastAddress& address) {
  const auto [at, added] = group_of_.try_emplace({address, static_cast<uint16_t>(plane)},
                                                 static_cast<uint32_t>(groups_.size()));
  if (added) groups_.emplace_back();
  return at->second;
}

void Router::join(unsigned plane, const MulticastAddress& address, HostId host) {
  Group& group = groups_[group_at(plane, address)];
  if (group.members[host]++ == 0) group.version++;
}

void Router::leave(unsigned plane, const MulticastAddress& address, HostId host) {
  const auto at = group_of_.find({address, static_cast<uint16_t>(plane)});
  if (at == group_of_.end()) return;
  Group& group = groups_[at->second];
  const auto member = group.members.find(host);
  if (member == group.members.end() || --member->second > 0) return;
  group.members.erase(member);
  group.version++;
}

uint32_t Router::tree_for(unsigned plane, const MulticastAddress& address, HostId from,
                          uint8_t* root_level) {
  const uint32_t number = group_at(plane, address);
  Group& group = groups_[number];
  const uint64_t key = address_key(address, plane);
  const uint64_t choice = by_source_ ? mix64(key + from) : key;
  const auto column = static_cast<uint32_t>(choice % topology_.columns(topology_.levels()));
  const auto [place, added] =
      group.tree_of.try_emplace(column, static_cast<uint32_t>(trees_.size()));
  if (added) {
    Tree tree;
    tree.key = key;
    tree.plane = static_cast<uint16_t>(plane);
    tree.column[topology_.levels()] = column;
    for (unsigned l = topology_.levels(); l > 1; l--) {
      tree.column[l - 1] = topology_.below(l, tree.column[l]);
    }
    trees_.push_back(std::move(tree));
  }
  Tree& tree = trees_[place->second];
  if (tree.version != group.version) grow_tree(tree, group);
  HostId low = from, high = from;
  if (!group.members.empty()) {
    low = std::min(low, group.members.begin()->first);
    high = std::max(high, group.members.rbegin()->first);
  }
  *root_level = static_cast<uint8_t>(topology_.cover(low, high));
  return place->second;
}

LinkId Router::tree_up(const Tree& tree, unsigned level, uint32_t child) const {
  const auto parallel = static_cast<uint32_t>(mix64(tree.key + child) % topology_.parallel(level));
  return topology_.up_link(tree.plane, level, child, tree.column[level], parallel);
}

void Router::grow_tree(Tree& tree, const Group& group) const {
  tree.version = group.version;
  tree.down.assign(topology_.switches(), {});
  for (unsigned level = 1; level <= topology_.levels(); level++) {
    uint32_t last = kNone;
    for (const auto& member : group.members) {  // in order, so a block's members follow each other
      const uint32_t child =
          level == 1 ? member.first : topology_.block_of(level - 1, member.first);
      if (child == last) continue;
      last = child;
      const LinkId up = tree_up(tree, level, child);
      tree.down[topology_.id(topology_.upper(topology_.link(up)))].push_back(Topology::reverse(up));
    }
  }
}

}  // namespace mcast::sim
