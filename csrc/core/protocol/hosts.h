// The members of each host, and the member of a host that leads for an owner: if the ranks of a
// host fold their inputs before they use the network, an owner gets one contribution per host.
// Agreed when the group is made. Hosts are numbered by their lowest rank.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class Hosts {
 public:
  // Every member is on a host of its own.
  explicit Hosts(uint32_t members);
  // host_of[m]: any number that distinguishes hosts.
  explicit Hosts(const std::vector<uint32_t>& host_of);

  uint32_t members() const { return static_cast<uint32_t>(host_of_.size()); }
  uint32_t count() const { return static_cast<uint32_t>(members_.size()); }
  // Returns true if all hosts have equally many members.
  bool even() const;
  // Returns true if every member is alone on its host.
  bool flat() const { return members_.size() == host_of_.size(); }
  uint32_t host_of(Member m) const { return host_of_[m]; }
  // Ascending.
  const std::vector<Member>& members(uint32_t host) const { return members_[host]; }
  // The member that sends the contribution of `host` to `owner`: the owner itself on its own host;
  // on other hosts, owners are assigned to the members round-robin.
  Member leader(uint32_t host, Member owner) const;

 private:
  std::vector<uint32_t> host_of_;
  std::vector<std::vector<Member>> members_;
};

}  // namespace mcast
