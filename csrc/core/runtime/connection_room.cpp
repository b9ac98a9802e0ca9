// The connections of a pair of processes serve all their groups, so a second group over the same
// ranks asks for more than it will use. Limits are raised by the amount that is asked for, which
// costs nothing.
#include "runtime/connection_room.h"

#include <algorithm>

#include "base/descriptors.h"
#include "base/log.h"

namespace mcast {
namespace {

constexpr uint64_t kSpare = 128;  // for the rest of the program

}  // namespace

ConnectionNeed connections_of(uint32_t ranks, uint32_t stripes, uint32_t reduce_stripes) {
  const uint64_t others = ranks - 1;
  // Control, repair, reduce; the multicast lane has no reduce connection.
  return {others * reduce_stripes, others * ((1 + stripes) + (1 + 2ull * reduce_stripes))};
}

void make_connection_room(const std::string& group, uint32_t ranks, const ConnectionNeed& need) {
  const uint64_t before = descriptor_use().soft;
  if (make_descriptor_room(need.most + kSpare)) {
    log(LogLevel::kInfo, "group '%s': the limit of descriptors is raised from %llu to %llu",
        group.c_str(), static_cast<unsigned long long>(before),
        static_cast<unsigned long long>(descriptor_use().soft));
  }
  const DescriptorUse use = descriptor_use();
  const uint64_t room = use.hard - std::min(use.hard, use.open);
  if (room >= need.reductions) return;
  log(LogLevel::kWarn,
      "group '%s' of %u ranks: a reduction needs %llu connections, but there are descriptors for "
      "only %llu: %s",
      group.c_str(), ranks, static_cast<unsigned long long>(need.reductions),
      static_cast<unsigned long long>(room), descriptor_text().c_str());
}

}  // namespace mcast
