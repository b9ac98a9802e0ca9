// A lane's knowledge of groups that it does not carry, to classify datagrams with an unknown tag.
// Groups over the same hosts share an address, as those of a mesh do, so a rank of one group
// receives another's datagrams. Only addresses are compared: another job on the same hosts looks
// the same. One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ip_address.h"
#include "runtime/retired_tags.h"

namespace mcast {

class OtherGroups {
 public:
  enum class Whose : uint8_t {
    kClosed,     // a group's that this lane has let go
    kNeighbour,  // from a host of a group of this lane
    kForeign,    // neither
  };
  Whose whose(uint64_t tag, const IpAddress& from) const {
    if (closed(tag)) return Whose::kClosed;
    const bool known = std::binary_search(hosts_.begin(), hosts_.end(), from);
    return known ? Whose::kNeighbour : Whose::kForeign;
  }
  bool closed(uint64_t tag) const { return retired_.contains(tag); }

  // Addresses that a group of this lane has to do with, and those of one that is let go.
  void add(const std::vector<IpAddress>& addresses) {
    const auto before = hosts_.insert(hosts_.end(), addresses.begin(), addresses.end());
    std::sort(before, hosts_.end());
    std::inplace_merge(hosts_.begin(), before, hosts_.end());
  }
  void retire(uint64_t tag, const std::vector<IpAddress>& addresses) {
    retired_.add(tag);
    for (const IpAddress& address : addresses) {
      hosts_.erase(std::lower_bound(hosts_.begin(), hosts_.end(), address));
    }
  }

 private:
  RetiredTags retired_;
  std::vector<IpAddress> hosts_;  // sorted; an address once for each member of each group
};

}  // namespace mcast
