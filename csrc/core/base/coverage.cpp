// Names of the points, expanded from the one table in coverage.h.
#include "base/coverage.h"

namespace mcast::reach_points {

const char* name(size_t point) noexcept {
  static constexpr const char* kNames[] = {
#define MCAST_REACH_POINT(name, help) #name,
      MCAST_REACH_POINTS(MCAST_REACH_POINT)
#undef MCAST_REACH_POINT
  };
  return kNames[point];
}

}  // namespace mcast::reach_points
