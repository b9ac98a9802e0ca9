// How a group's data travels: decided when it is made, changed in mid-life (path_switch.h).
#pragma once

#include <string>
#include <vector>

#include "base/types.h"

namespace mcast {

enum class Path : uint8_t { kUnknown, kMulticast, kRing, kLocal };

struct GroupPath {
  Path first = Path::kUnknown;  // as decided at the creation
  std::string reason;           // of what it is now
  // Set at the top if some member can never multicast: nothing is gained by asking again.
  bool no_multicast = false;
  // Changes since then, oldest first: operations from `from` on.
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
  // Of the operations that are posted next.
  bool on_ring() const { return turns.empty() ? first == Path::kRing : turns.back().ring; }
};

}  // namespace mcast
