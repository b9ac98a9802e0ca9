// The contract suite's World over UDP and TCP in real time: on loopback or, if run by hand in a
// network namespace, on the interface that MCAST_TEST_IFNAME names ("=eth0").
#pragma once

#include <gtest/gtest.h>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/socket_address.h"
#include "transport/real_time_world.h"
#include "transport/udp/udp_transport.h"

namespace mcast::testing {

struct UdpWorld : RealTimeWorld {
  UdpTransportOptions options;

  bool loopback = true;  // for the multicast addresses

  UdpWorld() {
    const char* const name = std::getenv("MCAST_TEST_IFNAME");
    options.interface = name != nullptr ? name : "=lo";
    loopback = name == nullptr;
    options.rcvbuf = 2 << 20;
  }
  // `stripe` addresses of the loopback network, each used like an interface.
  std::unique_ptr<Transport> make_striped(size_t stripe) {
    const auto interfaces = list_interfaces();
    const auto lo = find_loopback(*interfaces);
    std::vector<Interface> several;
    for (size_t i = 0; i < stripe; ++i) {
      several.push_back(*lo);
      several.back().address = IpAddress::v4(INADDR_LOOPBACK + static_cast<uint32_t>(i));
    }
    auto transport = std::make_unique<UdpTransport>();
    const Status status = transport->open_on(options, several, *lo);
    if (!status.ok()) ADD_FAILURE() << status.to_string();
    return transport;
  }
  std::unique_ptr<Transport> make() {
    auto transport = make_udp_transport(options);
    if (!transport.ok()) ADD_FAILURE() << transport.status().to_string();
    return transport.ok() ? std::move(transport).value() : nullptr;
  }
  MulticastAddress address(int n) const { return own_address(n, loopback); }
};

// The same over IPv6, on ::1.
struct UdpV6World : UdpWorld {
  UdpV6World() {
    options.interface = "=::1";
    loopback = true;
  }
};

}  // namespace mcast::testing
