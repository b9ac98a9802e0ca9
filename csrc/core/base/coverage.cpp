// Names of the points, expanded from the one table in coverage.h.
#include "base/coverage.h"

namespace mcast::reach_points {

const char* name(size_t point) noexcept {
  static constexpr const char* kNames[] = {
#define MCAST_COVER_POINT(name, help) #name,
      MCAST_COVER_POINTS(MCAST_COVER_POINT)
#undef MCAST_COVER_POINT
  };
  return kNames[point];
}

}  // namespace mcast::reach_points
