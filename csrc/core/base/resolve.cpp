// AI_ADDRCONFIG is not set: it hides addresses of a version that only loopback has, and a caller
// tries the next address in any case.
#include "base/resolve.h"

#include <netdb.h>

#include <memory>

#include "base/socket_address.h"

namespace mcast {

Result<std::vector<Endpoint>> resolve_host(const std::string& host, uint16_t port) {
  if (const auto number = IpAddress::parse(host)) return std::vector<Endpoint>{{*number, port}};
  addrinfo hints{}, *head = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &head); error != 0) {
    return Status(Code::kUnavailable,
                  "the host " + host + " is not known: " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(head, ::freeaddrinfo);
  std::vector<Endpoint> all;
  for (const addrinfo* a = head; a != nullptr; a = a->ai_next) {
    const IpAddress address = SocketAddress::copy(a->ai_addr).endpoint().address;
    if (address.known()) all.push_back({address, port});
  }
  if (all.empty()) return Status(Code::kUnavailable, "the host " + host + " has no IP address");
  return all;
}

}  // namespace mcast
