// Descriptors for a group's connections, found out when it is made: a reduction connects every rank
// with every other, which could otherwise fail in the middle of an operation. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace mcast {

// Connections of one rank over TCP, both lanes. `stripes`: interfaces of the multicast lane, of the
// reduce lane.
struct ConnectionNeed {
  uint64_t reductions = 0;  // as soon as there is one
  uint64_t most = 0;        // repairs from and to everybody, and rings, too
};
ConnectionNeed connections_of(uint32_t ranks, uint32_t stripes, uint32_t reduce_stripes);

// Raises the process's soft limit of descriptors to what the group may need, as far as it may, and
// says so; warns if not even its reductions have room.
void make_connection_room(const std::string& group, uint32_t ranks, const ConnectionNeed& need);

}  // namespace mcast
