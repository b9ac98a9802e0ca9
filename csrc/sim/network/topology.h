// Links and switches of a network. Every topology here consists of levels: hosts are level 0; a
// switch of level L reaches the hosts of one block of span(L) hosts, and columns(L) switches reach
// the same block. A switch of column c has one neighbour in each block below it, in the column
// below(L, c), over parallel(L) links. So routes follow from numbers, without tables:
//
//   star       level 1: one switch
//   leafspine  level 1: leaves; level 2: `spines` columns, `links` parallel links to each leaf
//   fattree    level 1: leaves of radix/2 hosts; level 2: radix/2 columns for each pod; level 3:
//              `cores` columns, of which column c is linked to column c mod radix/2 of each pod
//
// `planes` is the number of separate fabrics; each host has a link to each.
//
// Links have a direction: link 2k goes up, 2k + 1 is its way back. Threads: immutable except for
// grow().
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/network/train.h"

namespace mcast::sim {

struct TopologySpec {
  enum class Kind : uint8_t { kStar, kLeafSpine, kFatTree };
  Kind kind = Kind::kStar;
  uint32_t hosts = 0;  // star: more may be added
  uint32_t planes = 1;
  uint32_t leaves = 0, spines = 0, links = 1;  // leafspine; hosts are spread in blocks
  uint32_t radix = 0;                          // fattree
  uint32_t pod = 0;                            // hosts of a pod; 0: (radix / 2)^2
  uint32_t cores = 0;                          // 0: (radix / 2)^2

  // "star", "leafspine:leaves=12,spines=6,links=3", "fattree:radix=32,planes=2". An impossible
  // specification is refused with one line.
  static Result<TopologySpec> parse(std::string_view text, uint32_t hosts);
  Status check() const;
};

struct Link {
  uint16_t plane = 0;
  uint8_t level = 1;    // of its upper end
  bool up = true;       // away from the hosts
  uint32_t child = 0;   // block at the lower end, of level - 1; at level 1: the host
  uint32_t column = 0;  // of the upper end
};

// A switch by its position; `id` counts all of them.
struct Switch {
  uint16_t plane = 0;
  uint8_t level = 1;
  uint32_t block = 0, column = 0;
};

class Topology {
 public:
  static constexpr unsigned kMostLevels = 3;

  // `spec` must be accepted by check().
  explicit Topology(const TopologySpec& spec);

  uint32_t hosts() const { return spec_.hosts; }
  uint32_t planes() const { return spec_.planes; }
  unsigned levels() const { return levels_; }
  LinkId links() const { return static_cast<LinkId>(links_.size()); }
  uint32_t switches() const { return switches_per_plane_ * spec_.planes; }
  // Adds a host; only for a star with one plane.
  HostId grow();

  const Link& link(LinkId id) const { return links_[id]; }
  static LinkId reverse(LinkId id) { return id ^ 1u; }
  uint32_t span(unsigned level) const { return span_[level]; }
  uint32_t columns(unsigned level) const { return columns_[level]; }
  uint32_t parallel(unsigned level) const { return parallel_[level]; }
  // The column, one level lower, that a switch of this column is linked to.
  uint32_t below(unsigned level, uint32_t column) const {
    return columns_[level - 1] == 0 ? 0 : column % columns_[level - 1];
  }
  uint32_t block_of(unsigned level, HostId host) const { return host / span_[level]; }
  // The lowest level at which one block holds all hosts from `low` to `high`; at least 1.
  unsigned cover(HostId low, HostId high) const;

  // The link up from block `child` of level - 1 to column `column` of `level`.
  LinkId up_link(unsigned plane, unsigned level, uint32_t child, uint32_t column,
                 uint32_t parallel) const;
  LinkId host_link(unsigned plane, HostId host) const { return up_link(plane, 1, host, 0, 0); }
  // The switch at the upper or at the lower end; the latter not for a host's link.
  Switch upper(const Link& link) const;
  Switch lower(const Link& link) const;
  uint32_t id(const Switch& s) const;

  // "host-leaf up", "leaf-spine down", ...
  std::string class_name(const Link& link) const;
  // Classes of links are (level - 1) * 2 + (down ? 1 : 0).
  static size_t link_class(const Link& link) { return (link.level - 1u) * 2 + (link.up ? 0 : 1); }

 private:
  void lay_links(unsigned plane);

  TopologySpec spec_;
  unsigned levels_ = 1;
  // Indexed by level; 0 stands for hosts.
  std::array<uint32_t, kMostLevels + 1> span_{}, columns_{}, parallel_{}, blocks_{};
  std::array<uint32_t, kMostLevels + 1> first_link_{}, first_switch_{};
  uint32_t links_per_plane_ = 0, switches_per_plane_ = 0;
  std::vector<Link> links_;
};

}  // namespace mcast::sim
