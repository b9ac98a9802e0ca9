// Restricts which hosts may talk to this process (setting `allow`): a filter in the kernel for
// datagram sockets, and the same check for accepted connections.
#pragma once

#include <linux/filter.h>

#include <span>
#include <string>
#include <vector>

#include "base/ipv4_network.h"
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
  bool passes(uint32_t address) const;
  // Installs the filter: datagrams of other sources are dropped before they take room in the
  // socket's buffer.
  Status attach(int fd) const;
  // The program that attach() installs, for its test.
  std::vector<sock_filter> program() const;

 private:
  std::vector<Ipv4Network> networks_;
};

}  // namespace mcast
