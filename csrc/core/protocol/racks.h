// Which contributors of a reduction (hosts, protocol/hosts.h) share a rack. Contributions are
// folded in brackets: those of a rank's rack first, then the racks' sums; so that one station per
// rack can fold its rack, and yet nobody who folds a segment gets other bits. Agreed when the group
// is made.
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
  // One rack, which has all.
  Racks() = default;
  // names[c]: of contributor c's rack; those without a name are in one together.
  explicit Racks(const std::vector<std::string>& names);

  // All are in one rack: there are no brackets, and nothing below may be asked.
  bool flat() const { return members_.size() < 2; }
  // Racks are numbered by their lowest contributor, which is the order of their sums in the fold.
  uint32_t count() const { return static_cast<uint32_t>(members_.size()); }
  uint32_t rack_of(uint32_t contributor) const { return rack_of_[contributor]; }
  // Ascending.
  const std::vector<uint32_t>& members(uint32_t rack) const { return members_[rack]; }
  // A contributor's place among those of its rack.
  uint32_t place_of(uint32_t contributor) const { return place_of_[contributor]; }
  // The place of the first one in the rack's bracket, where `first` would be the first of all: the
  // others follow in ascending order, modulo their number.
  uint32_t first_place(uint32_t rack, uint32_t first) const;
  // The rack of that name; nothing: nobody is in it, or all are in one, or it is no name.
  std::optional<uint32_t> find(std::string_view name) const;

 private:
  std::vector<std::string> names_;
  std::vector<uint32_t> rack_of_, place_of_;
  std::vector<std::vector<uint32_t>> members_;
};

// Of hosts, where names[m] is the rack that member m is in: a host is where its lowest rank is.
Racks racks_of_hosts(const Hosts& hosts, const std::vector<std::string>& names);

}  // namespace mcast
