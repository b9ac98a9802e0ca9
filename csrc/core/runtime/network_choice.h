// Chooses the network that the ranks of a group use if their hosts have several. Rank 0 decides
// from all records, so all ranks of a group use the same network.
//
// A network is common if every rank has an address in it and no two hosts have the same address. Of
// the common networks, the one with the fastest links wins, where a network is as fast as its
// slowest rank's link. Among equals, the network that is near to most ranks wins
// (OwnAddress::near), then the one through which most ranks reach the store, then the lowest
// address, with IPv4 before IPv6. So hosts that have both IP versions use IPv4, unless they reach
// the store over IPv6 or a setting names an IPv6 network. Speeds are compared only if the speed of
// the way to the store is known. A network on which rank 0 reaches no other host is not used.
// Without a common network, each rank uses its own way to the store, over the IP version that leads
// all ranks there, or else over a version that all ranks have.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/rendezvous.h"
#include "transport/own_address.h"

namespace mcast {

// Values of Roster::network if there is no common network: each rank uses its own way to the store,
// over the IP version that leads all ranks there.
inline constexpr const char* kByRoute = "route";
inline constexpr const char* kByRoute6 = "route6";

// The text of addresses in a record. parse_addresses() skips entries that do not parse.
std::string addresses_text(const std::vector<OwnAddress>& addresses);
std::vector<OwnAddress> parse_addresses(const std::string& text);

// The address to use in `network`: the fastest one, then the nearest, then the first. `network` is
// a network's text, kByRoute or kByRoute6 (addresses of that IP version, on the way to the store if
// there is one), or empty (all addresses). Null: there is no such address.
const OwnAddress* best_address(const std::vector<OwnAddress>& own, const std::string& network);

// The address with which a rank begins, before it knows the other ranks' records. `last`: the
// network that its last group agreed on; may be empty.
const OwnAddress* first_guess(const std::vector<OwnAddress>& own, const std::string& last);

// Returns true if all of these addresses of other hosts can be reached from `own`. It does not
// matter whether anything listens at their ports.
using Reaches = std::function<bool(const OwnAddress& own, const std::vector<Endpoint>& far)>;

// The network that all ranks should use, as an argument of best_address(). Empty: they use it
// already, or there is no choice.
std::string choose_network(const std::vector<RankRecord>& records, const Reaches& reaches);

}  // namespace mcast
