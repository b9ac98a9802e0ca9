// Contributors are visited in ascending order, so a rack gets its number from its lowest one.
#include "protocol/racks.h"

#include <algorithm>

namespace mcast {

Racks::Racks(const std::vector<std::string>& names) {
  for (uint32_t c = 0; c < names.size(); c++) {
    const auto at = std::find(names_.begin(), names_.end(), names[c]);
    const auto rack = static_cast<uint32_t>(at - names_.begin());
    if (at == names_.end()) {
      names_.push_back(names[c]);
      members_.emplace_back();
    }
    rack_of_.push_back(rack);
    place_of_.push_back(static_cast<uint32_t>(members_[rack].size()));
    members_[rack].push_back(c);
  }
}

uint32_t Racks::first_place(uint32_t rack, uint32_t first) const {
  const std::vector<uint32_t>& all = members_[rack];
  const auto at = std::lower_bound(all.begin(), all.end(), first);
  return at == all.end() ? 0 : static_cast<uint32_t>(at - all.begin());
}

std::optional<uint32_t> Racks::find(std::string_view name) const {
  if (flat() || name.empty()) return std::nullopt;
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at == names_.end()) return std::nullopt;
  return static_cast<uint32_t>(at - names_.begin());
}

Racks racks_of_hosts(const Hosts& hosts, const std::vector<std::string>& names) {
  std::vector<std::string> of_host;
  for (uint32_t h = 0; h < hosts.count(); h++) of_host.push_back(names[hosts.members(h)[0]]);
  return Racks(of_host);
}

}  // namespace mcast
