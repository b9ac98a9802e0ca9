// Texts of the planner's results, for people.
#include "collective/aggregation_report.h"

namespace mcast {

const char* placement_text(PlacementReason reason) noexcept {
  switch (reason) {
    case PlacementReason::kPlaced:
      return "placed";
    case PlacementReason::kOff:
      return "aggregate is off";
    case PlacementReason::kNoStations:
      return "no stations";
    case PlacementReason::kFewContributors:
      return "fewer than 3 contributors";
    case PlacementReason::kSmall:
      return "less than 1 MiB";
    case PlacementReason::kFewSegments:
      return "fewer than 4 segments for a station";
    case PlacementReason::kSmallGain:
      return "the gain is less than the cost";
    case PlacementReason::kSlower:
      return "measured: slower than without";
  }
  return "unknown";
}

}  // namespace mcast
