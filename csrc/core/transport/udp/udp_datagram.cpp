// Combines sender and receiver and holds the figures on which both depend: the largest datagram per
// interface, and the receive budget, which subtracts the kernel's bookkeeping from the granted
// buffer (a datagram of 1440 bytes is charged 1.6 times its payload; super-packets less).
#include "transport/udp/udp_datagram.h"

#include <algorithm>

#include "transport/udp/stream_wire.h"

namespace mcast {
namespace {

size_t largest(const Interface& interface, uint64_t max_mtu) {
  const auto mtu = static_cast<size_t>(std::min<uint64_t>(interface.mtu, max_mtu));
  const size_t overhead = udp_overhead(interface.address);
  return mtu > overhead ? std::min(mtu - overhead, kMaxUdpPayload) : 0;
}

}  // namespace

Status UdpDatagram::open(const UdpTransportOptions& options, std::span<const Interface> stripe,
                         const Interface& loopback) {
  headers_ = udp_overhead(stripe[0].address);
  max_stripe_ = kMaxUdpPayload;
  for (const Interface& interface : stripe) {
    max_stripe_ = std::min(max_stripe_, largest(interface, options.max_mtu));
  }
  max_loopback_ = largest(loopback, options.max_mtu);
  if (Status status = sender_.open(options, stripe, loopback); !status.ok()) return status;
  return receiver_.open(options, stripe, loopback);
}

size_t UdpDatagram::max_datagram(const MulticastAddress& address) const {
  return address.loopback ? max_loopback_ : max_stripe_;
}

// Every interface of a stripe sends from the address at which it listens.
std::vector<IpAddress> UdpDatagram::sources_of(const StreamAddress& endpoint) const {
  std::vector<IpAddress> addresses;
  const auto endpoints = stripe_endpoints(endpoint);
  if (!endpoints.ok()) return addresses;
  for (const Endpoint& at : *endpoints) addresses.push_back(at.address);
  return addresses;
}

size_t UdpDatagram::receive_budget() const { return receiver_.granted() * 5 / 8; }

Bytes UdpDatagram::lend(const MulticastAddress& address, size_t size, Echo echo) {
  if (size == 0 || size > max_datagram(address)) {
    ++stats_.oversize;
    return {};
  }
  return sender_.lend(address, size, echo);
}

void UdpDatagram::clear_errors() {
  sender_.clear_errors();
  receiver_.clear_errors();
}

}  // namespace mcast
