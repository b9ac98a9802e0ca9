// Interfaces come and go, so they are listed again, at most once a second: a group of a thousand
// ranks makes two thousand checks.
#include "service/reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <algorithm>
#include <bit>

#include "engine/clock.h"
#include "transport/udp/stream_wire.h"

namespace mcast::service {
namespace {

constexpr Nanos kFresh = kSecond;

uint32_t host_order(const sockaddr* address) {
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
}

}  // namespace

// If the networks are given, only the addresses of the interfaces count, and loopback.
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

bool Reach::includes(uint32_t address) {
  const std::lock_guard<std::mutex> held(mutex_);
  look(monotonic_now());
  return std::any_of(allowed_.begin(), allowed_.end(),
                     [address](const Ipv4Network& n) { return n.contains(address); });
}

Status Reach::may_one(uint32_t address, uint16_t port) {
  if (includes(address) && port >= kLeastPort) return {};
  return Status(Code::kInvalidArgument,
                "the engine does not go to " + ipv4_text(address) + ":" + std::to_string(port) +
                    ": only to " +
                    (networks_.empty() ? "networks of its interfaces (--peers takes others)"
                                       : "this host and the networks in its --peers") +
                    ", ports from " + std::to_string(kLeastPort) + " on");
}

Status Reach::may(const std::string& host, uint16_t port) {
  const auto endpoints = stripe_endpoints({0, host, port});
  if (!endpoints.ok()) return Status(Code::kInvalidArgument, "'" + host + "' is no address");
  for (const sockaddr_in& one : *endpoints) {
    Status may = may_one(ntohl(one.sin_addr.s_addr), ntohs(one.sin_port));
    if (!may.ok()) return may;
  }
  return {};
}

}  // namespace mcast::service
