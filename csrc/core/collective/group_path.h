// The path of a group's data: decided when the group is created, and changeable later
// (path_switch.h).
#pragma once

#include <string>
#include <vector>

#include "base/types.h"

namespace mcast {

enum class Path : uint8_t { kUnknown, kMulticast, kRing, kLocal };

struct GroupPath {
  Path first = Path::kUnknown;  // as decided at creation
  std::string reason;           // of the current path
  // Set at the top if some member can never multicast, so that checking again is useless.
  bool no_multicast = false;
  // Later changes, oldest first. Each applies to operations from `from` on.
  struct Turn {
    Sequence from;
    bool ring;
  };
  std::vector<Turn> turns;

  bool by_ring(Sequence sequence) const {
    bool ring = first == Path::kRing;
    for (const Turn& turn : turns) {
      if (sequence < turn.from) break;
      ring = turn.ring;
    }
    return ring;
  }
  // The path of operations that are posted next.
  bool on_ring() const { return turns.empty() ? first == Path::kRing : turns.back().ring; }
};

}  // namespace mcast
