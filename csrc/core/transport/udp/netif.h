// Chooses the network interface: the only place that decides it, for the doctor too. Enumeration
// asks the system; the choice is a pure function.
//
// Pattern grammar (NCCL_SOCKET_IFNAME's, and '+'): a comma list of name prefixes, "eth,ib". A
// leading '=' makes all names of the list exact, a leading '^' turns the list into exclusions, "^="
// into exact exclusions. Among several matches the earlier name of the list wins, then the system's
// order. An exact list gives its i-th usable entry to lane i, and starts over at its end; an entry
// of several names, "=eth0+eth1", stripes its lane over them, and all of them must be usable. An
// entry may also be an address or network of IPv4 or IPv6, "10.1.0.0/16", "fd00:1::/64": it selects
// the interface that has an address there, and that address is used.
//
// An interface that is not selected by an address is used with its first IPv4 address; one without
// IPv4, or whose IPv4 address is link-local (169.254.0.0/16), with its first IPv6 address. Of
// these, temporary ones (RFC 8981) and deprecated ones come last. Link-local ones of IPv6 are never
// used: they are valid with a scope only, which differs from host to host.
//
// If the pattern is empty or has exclusions, the candidates are interfaces that are up, have an
// address and multicast and are neither loopback nor a container bridge. The order of
// preference: the fastest, if the speed of the one that leads to the store (or else has the default
// route) is known; else that one; else the first; else loopback. In a group of several hosts the
// ranks then agree on a network (runtime/network_choice.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/ip_address.h"
#include "base/status.h"

namespace mcast {

struct Interface {
  std::string name;
  int index = 0;
  IpAddress address{};                 // to be used, if it has one
  std::vector<IpAddress> addresses{};  // usable ones: those of IPv4, then of IPv6; may be empty
  std::vector<uint32_t> prefixes{};    // prefix lengths of their networks, in the same order
  bool link_local = false;             // it has an IPv6 address that is valid on its link only
  uint32_t mtu = 0;                    // bytes of IP packet
  uint32_t speed = 0;                  // Mbit/s; 0 if not known
  bool up = false;
  bool loopback = false;
  bool multicast = false;
  bool default_route = false;
  bool store_route = false;  // it leads to the job's store

  // Returns its first address of this IP version, if it has one.
  IpAddress first_address(bool v6) const;
  bool usable() const noexcept { return up && address.known(); }
};

struct InterfacePattern {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;  // entries of the list

  // kInvalidArgument if the list is empty after '=' or '^', a name in it is empty, a stripe has a
  // name twice, or a stripe is not exact.
  static Result<InterfacePattern> parse(std::string_view text);
  // Position in `names` of the first one that matches, or -1. Ignores `exclude`.
  int match(std::string_view name) const;
  // Matches by name or by one of the interface's addresses.
  int match(const Interface& interface) const;
};

// Current MTU, bytes of IP packet; 0 if the interface no longer exists. `fd`: any socket.
uint32_t interface_mtu(int fd, const std::string& name);

// All interfaces of this network namespace, in the system's order, one row each.
Result<std::vector<Interface>> list_interfaces();

struct InterfaceChoice {
  std::vector<Interface> stripe;  // one interface, or those of the stripe, in the pattern's order
  std::string reason;             // for people: "it has the default route"
};

// Returns the interfaces of a lane, and the reason for the choice. kUnavailable if no interface
// matches; the error names the pattern and the existing interfaces.
Result<InterfaceChoice> choose_interfaces(const std::vector<Interface>& interfaces,
                                          std::string_view pattern, size_t lane = 0);
// Returns true if the interface may be chosen without being named: not loopback, not a container
// bridge, with an address that other hosts may reach, and with multicast or the route to the store.
bool may_choose(const Interface& interface, const IpAddress& address);
// The loopback interface; kUnavailable if it is missing or down.
Result<Interface> find_loopback(const std::vector<Interface>& interfaces);

}  // namespace mcast
