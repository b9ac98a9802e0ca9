// Reads inputs of the planner from standard input, one a line, and writes what it places, for
// tests/python/test_cost_model.py, which holds the Python model against it. One line:
//   scatter bytes members contributors segment ratio own mode stations capacity... racks
// and for each rack its contributors, leaves and capacity. An output line has the figures of
// Placement, and the text of the reason as the last field.
#include <iostream>

#include "aggregation/plan/placement.h"

int main() {
  mcast::PlacementInput input;
  int own = 0, mode = 0;
  size_t stations = 0;
  while (std::cin >> input.scatter >> input.bytes >> input.members >> input.contributors >>
         input.segment >> input.ratio >> own >> mode >> stations) {
    input.own = static_cast<mcast::OwnShard>(own);
    input.mode = static_cast<mcast::AggregateMode>(mode);
    input.capacities.resize(stations);
    for (uint32_t& capacity : input.capacities) std::cin >> capacity;
    size_t racks = 0;
    std::cin >> racks;
    input.racks.resize(racks);
    for (mcast::PlacementRack& rack : input.racks) {
      std::cin >> rack.contributors >> rack.leaves >> rack.capacity;
    }
    const mcast::Placement placement = mcast::place(input);
    std::cout << placement.part << ' ' << placement.kept << ' ' << placement.planned << ' '
              << placement.workers << ' ' << placement.alone << ' ' << placement.served << ' '
              << mcast::placement_text(placement.reason) << '\n';
  }
}
