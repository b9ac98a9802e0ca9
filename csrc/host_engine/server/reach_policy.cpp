// Interfaces come and go, so they are listed again, at most once a second: a group of a thousand
// ranks makes two thousand checks.
#include "host_engine/server/reach_policy.h"

#include <algorithm>

#include "base/clock.h"
#include "transport/udp/netif.h"
#include "transport/udp/stream_wire.h"

namespace mcast::service {
namespace {

constexpr Nanos kFresh = kSecond;

}  // namespace

// If the networks are given, only the addresses of the interfaces count, and loopback.
void ReachPolicy::look(Nanos now) {
  if (looked_ != kNever && now - looked_ < kFresh) return;
  looked_ = now;
  allowed_ = networks_;
  const auto interfaces = list_interfaces();
  if (!interfaces.ok()) return;
  for (const Interface& i : *interfaces) {
    for (size_t n = 0; n < i.addresses.size(); n++) {
      const bool whole = networks_.empty() || i.addresses[n].loopback();
      allowed_.push_back(whole ? IpNetwork::around(i.addresses[n], i.prefixes[n])
                               : IpNetwork::single(i.addresses[n]));
    }
  }
}

bool ReachPolicy::includes(const IpAddress& address) {
  const std::lock_guard<std::mutex> held(mutex_);
  look(monotonic_now());
  return std::any_of(allowed_.begin(), allowed_.end(),
                     [&address](const IpNetwork& n) { return n.contains(address); });
}

Status ReachPolicy::may_one(const Endpoint& to) {
  if (includes(to.address) && to.port >= kLeastPort) return {};
  return Status(Code::kInvalidArgument,
                "the engine does not connect to " + to.text() + ": only to " +
                    (networks_.empty() ? "networks of its interfaces (--peers names others)"
                                       : "this host and the networks in its --peers") +
                    ", ports from " + std::to_string(kLeastPort) + " on");
}

Status ReachPolicy::may(const std::string& host, uint16_t port) {
  const auto endpoints = stripe_endpoints({0, host, port});
  if (!endpoints.ok()) return Status(Code::kInvalidArgument, "'" + host + "' is not an address");
  for (const Endpoint& one : *endpoints) {
    if (Status may = may_one(one); !may.ok()) return may;
  }
  return {};
}

}  // namespace mcast::service
