// Which network interface to use: the one place that decides it, also for the doctor. Enumeration
// asks the system; the choice is a pure function.
//
// Pattern grammar (NCCL_SOCKET_IFNAME's, and '+'): a comma list of name prefixes, "eth,ib". A
// leading '=' makes all names of the list exact, a leading '^' turns the list into exclusions, "^="
// into exact exclusions. Among several matches the earlier name of the list wins, then the system's
// order. An exact list gives its i-th usable entry to lane i, from the start again at its end; an
// entry of several names, "=eth0+eth1", stripes its lane over them, and all of them must be usable.
// An entry may also be an IPv4 address or network, "10.1.0.0/16": the interface that has an address
// there, which is then used. Empty, or with exclusions: among those that are up, have an IPv4
// address and multicast and are no loopback or container bridge the fastest, where the speed of the
// one that leads to the store (or else has the default route) is known; else that one; else the
// first; else loopback. Of a group of several hosts the ranks then agree on a network
// (engine/network_choice.h).
#pragma once

#include <netinet/in.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace mcast {

struct Interface {
  std::string name;
  int index = 0;
  in_addr address{};                 // IPv4, the one to be used; 0.0.0.0 if it has none
  std::vector<in_addr> addresses{};  // IPv4, all of them; may be empty
  std::vector<uint32_t> prefixes{};  // bits of their networks, in the same order
  bool ipv6 = false;                 // it has a global IPv6 address
  uint32_t mtu = 0;                  // bytes of IP packet
  uint32_t speed = 0;                // Mbit/s; 0: not known
  bool up = false;
  bool loopback = false;
  bool multicast = false;
  bool default_route = false;
  bool store_route = false;  // it leads to the job's store

  bool usable() const noexcept { return up && address.s_addr != 0; }
};

struct InterfacePattern {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;  // entries of the list

  // kInvalidArgument for an empty list after '=' or '^', an empty name in the list, one name twice
  // in a stripe, or a stripe that is not exact.
  static Result<InterfacePattern> parse(std::string_view text);
  // Position in `names` of the first that matches, or -1. Ignores `exclude`.
  int match(std::string_view name) const;
  // By name or by one of its addresses.
  int match(const Interface& interface) const;
};

// Its MTU now, bytes of IP packet; 0: there is no such interface any more. `fd`: any socket.
uint32_t interface_mtu(int fd, const std::string& name);

// All interfaces of this network namespace, in the system's order, one row each (first IPv4
// address).
Result<std::vector<Interface>> list_interfaces();

struct InterfaceChoice {
  std::vector<Interface> stripe;  // one, or those of the stripe, in the pattern's order
  std::string reason;             // for people: "it has the default route"
};

// The interfaces of a lane, and why these. kUnavailable when nothing matches: names the pattern and
// what exists.
Result<InterfaceChoice> choose_interfaces(const std::vector<Interface>& interfaces,
                                          std::string_view pattern, size_t lane = 0);
// Whether it may be chosen by itself: no loopback, no container bridge, an address that others may
// reach, and multicast or the way to the store.
bool may_choose(const Interface& interface, in_addr address);
// The loopback interface; kUnavailable if it is missing or down.
Result<Interface> find_loopback(const std::vector<Interface>& interfaces);

}  // namespace mcast
