// Restricts which hosts may talk to this process (setting `allow`): a filter in the kernel for
// datagram sockets, and the same check for accepted connections.
#pragma once

#include <linux/filter.h>

#include <span>
#include <string>
#include <vector>

#include "base/ip_address.h"
#include "base/refusal.h"
#include "base/status.h"
#include "transport/udp/netif.h"

namespace mcast {

class SourceFilter {
 public:
  SourceFilter() = default;  // allows every source
  // `allow`: the setting. Datagrams that this host sends to itself from one of `own` are allowed,
  // too.
  static Result<SourceFilter> make(const std::string& allow, std::span<const Interface> own);

  bool restricts() const { return !networks_.empty(); }
  bool passes(const IpAddress& address) const;
  // Installs the filter: datagrams of other sources are dropped before they take room in the
  // socket's buffer. `v6`: the socket's IP version; networks of the other one do not count.
  Status attach(int fd, bool v6) const;
  // The program that attach() installs, for its test.
  std::vector<sock_filter> program(bool v6) const;

 private:
  std::vector<IpNetwork> networks_;
};

}  // namespace mcast
