// Which network the ranks of several hosts use, where they have more than one: decided by rank 0
// from all records, so that all ranks of a group use the same.
//
// A network is common if every rank has an address in it, and no two hosts the same one. Of the
// common ones the fastest counts, by the slowest rank's link; among equals the one that is near to
// most ranks (OwnAddress::near), then the one that leads most of them to the store, then the lowest
// address, one of IPv4 before those of IPv6. So hosts that have both versions use IPv4, unless the
// store is reached over IPv6 or a setting names a network of IPv6. Speeds are compared only where
// that of the way to the store is known. A network on which rank 0 reaches no other host does not
// count. Without a common one each rank takes its own way to the store, over the IP version that
// leads all of them there, or else that all of them have.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/rendezvous.h"
#include "transport/own_address.h"

namespace mcast {

// What Roster::network says instead of a network: each rank its own way to the store, over the IP
// version that leads all ranks there.
inline constexpr const char* kByRoute = "route";
inline constexpr const char* kByRoute6 = "route6";

// As they stand in a record. Entries that do not parse are left out.
std::string addresses_text(const std::vector<OwnAddress>& addresses);
std::vector<OwnAddress> parse_addresses(const std::string& text);

// Of those in `network` (its text; kByRoute, kByRoute6: those of that version, on the way to the
// store if there is one; empty: all) the one to use: the fastest, the nearest, the first. Null:
// there is none.
const OwnAddress* best_address(const std::vector<OwnAddress>& own, const std::string& network);

// The one with which a rank begins, before it knows of the others. `last`: what its last group
// agreed on; may be empty.
const OwnAddress* first_guess(const std::vector<OwnAddress>& own, const std::string& last);

// Returns true if all of these addresses of other hosts can be reached from `own`. Something may
// listen at their ports.
using Reaches = std::function<bool(const OwnAddress& own, const std::vector<Endpoint>& far)>;

// The network that all should use, as best_address() takes it; empty: they do already, or there is
// nothing to choose.
std::string choose_network(const std::vector<RankRecord>& records, const Reaches& reaches);

}  // namespace mcast
