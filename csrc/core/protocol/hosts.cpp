// Owners are assigned to the members of a host by their position among all members that are not on
// it, so that all lead for equally many, to within one, however uneven the hosts are. With equal
// hosts of consecutive ranks, member i of a host leads for the i-th members of the others.
#include "protocol/hosts.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace mcast {
namespace {

std::vector<uint32_t> one_each(uint32_t members) {
  std::vector<uint32_t> hosts(members);
  std::iota(hosts.begin(), hosts.end(), 0u);
  return hosts;
}

}  // namespace

Hosts::Hosts(uint32_t members) : Hosts(one_each(members)) {}

Hosts::Hosts(const std::vector<uint32_t>& host_of) {
  std::map<uint32_t, uint32_t> numbers;
  for (const uint32_t host : host_of) {
    const auto [it, first] = numbers.emplace(host, static_cast<uint32_t>(members_.size()));
    if (first) members_.emplace_back();
    members_[it->second].push_back(static_cast<Member>(host_of_.size()));
    host_of_.push_back(it->second);
  }
}

bool Hosts::even() const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](const auto& m) { return m.size() == members_[0].size(); });
}

Member Hosts::leader(uint32_t host, Member owner) const {
  if (host_of_[owner] == host) return owner;
  const std::vector<Member>& here = members_[host];
  const auto before = std::lower_bound(here.begin(), here.end(), owner) - here.begin();
  return here[(owner - static_cast<size_t>(before)) % here.size()];
}

}  // namespace mcast
