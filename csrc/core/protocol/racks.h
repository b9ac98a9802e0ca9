// Racks of the contributors of a reduction (hosts, protocol/hosts.h). Contributions are folded in
// brackets: first those of each rack, then the racks' sums; so one station per rack can fold its
// rack, and every executor of a segment still gets the same bits. Agreed when the group is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/hosts.h"

namespace mcast {

class Racks {
 public:
  // One rack, which contains all contributors.
  Racks() = default;
  // names[c]: rack of contributor c; those without a name form one rack together.
  explicit Racks(const std::vector<std::string>& names);

  // Returns true if all are in one rack: there are no brackets, and the functions below must not be
  // called.
  bool flat() const { return members_.size() < 2; }
  // Racks are numbered by their lowest contributor, which is the order of their sums in the fold.
  uint32_t count() const { return static_cast<uint32_t>(members_.size()); }
  uint32_t rack_of(uint32_t contributor) const { return rack_of_[contributor]; }
  // Ascending.
  const std::vector<uint32_t>& members(uint32_t rack) const { return members_[rack]; }
  // A contributor's place among those of its rack.
  uint32_t place_of(uint32_t contributor) const { return place_of_[contributor]; }
  // The place of the first one in the rack's bracket, if `first` is the first of all contributors:
  // the others follow in ascending order, modulo their number.
  uint32_t first_place(uint32_t rack, uint32_t first) const;
  // The rack of that name; nothing: it has no contributor, or all are in one rack, or it is not a
  // name.
  std::optional<uint32_t> find(std::string_view name) const;

 private:
  std::vector<std::string> names_;
  std::vector<uint32_t> rack_of_, place_of_;
  std::vector<std::vector<uint32_t>> members_;
};

// Racks of hosts, where names[m] is the rack of member m: a host is in the rack of its lowest rank.
Racks racks_of_hosts(const Hosts& hosts, const std::vector<std::string>& names);

}  // namespace mcast
