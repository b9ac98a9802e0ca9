// Interfaces come and go, so they are asked for again, once a second at most: a group of a thousand
// ranks asks two thousand times.
#include "service/reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <algorithm>
#include <bit>

#include "base/units.h"
#include "engine/clock.h"

namespace mcast::service {
namespace {

constexpr Nanos kFresh = kSecond;

uint32_t host_order(const sockaddr* address) {
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
}

bool parse_address(const std::string& text, uint32_t& out) {
  in_addr address{};
  if (::inet_pton(AF_INET, text.c_str(), &address) != 1) return false;
  out = ntohl(address.s_addr);
  return true;
}

}  // namespace

// With networks of its own, only the addresses of interfaces count, and what is loopback.
void Reach::look(Nanos now) {
  if (looked_ != kNever && now - looked_ < kFresh) return;
  looked_ = now;
  allowed_ = networks_;
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0) return;
  for (const ifaddrs* one = head; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_netmask == nullptr) continue;
    if (one->ifa_addr->sa_family != AF_INET) continue;
    const uint32_t address = host_order(one->ifa_addr), mask = host_order(one->ifa_netmask);
    const bool whole = networks_.empty() || (address >> 24) == IN_LOOPBACKNET;
    const auto prefix = static_cast<uint32_t>(whole ? std::popcount(mask) : 32);
    const Ipv4Network network{0, prefix};
    allowed_.push_back({address & network.mask(), prefix});
  }
  ::freeifaddrs(head);
}

Status Reach::may_one(const std::string& host, uint16_t port) {
  uint32_t address = 0;
  if (!parse_address(host, address)) {
    return Status(Code::kInvalidArgument, "'" + host + "' is no address");
  }
  const std::lock_guard<std::mutex> held(mutex_);
  look(monotonic_now());
  const bool within = std::any_of(allowed_.begin(), allowed_.end(),
                                  [address](const Ipv4Network& n) { return n.contains(address); });
  if (within && port >= kLeastPort) return {};
  return Status(Code::kInvalidArgument,
                "the engine does not go to " + host + ":" + std::to_string(port) + ": only to " +
                    (networks_.empty() ? "networks of its interfaces (--peers takes others)"
                                       : "this host and the networks in its --peers") +
                    ", ports from " + std::to_string(kLeastPort) + " on");
}

Status Reach::may(const std::string& host, uint16_t port) {
  for (size_t at = 0; at <= host.size();) {
    const size_t end = std::min(host.find('+', at), host.size());
    std::string one = host.substr(at, end - at);
    if (at > 0) {
      const size_t colon = one.find(':');
      if (colon == std::string::npos || !read_number(one.substr(colon + 1), port)) {
        return Status(Code::kInvalidArgument, "'" + host + "' is no address");
      }
      one.resize(colon);
    }
    if (Status status = may_one(one, port); !status.ok()) return status;
    at = end + 1;
  }
  return {};
}

}  // namespace mcast::service
