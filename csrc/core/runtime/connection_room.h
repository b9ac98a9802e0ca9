// Ensures that the process has descriptors for a group's connections when the group is made: a
// reduction connects every rank with every other, which could otherwise fail in the middle of an
// operation. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace mcast {

// Connections of one rank over TCP, both lanes. `stripes`: interfaces of the multicast lane;
// `reduce_stripes`: of the reduce lane.
struct ConnectionNeed {
  uint64_t reductions = 0;  // used by any reduction
  uint64_t most = 0;        // plus repairs from and to all ranks, and rings
};
ConnectionNeed connections_of(uint32_t ranks, uint32_t stripes, uint32_t reduce_stripes);

// Raises the process's soft limit of descriptors to the number that the group may need, as far as
// allowed, and logs it. Warns if there is no room even for its reductions.
void make_connection_room(const std::string& group, uint32_t ranks, const ConnectionNeed& need);

}  // namespace mcast
