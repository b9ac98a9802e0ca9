// The heap of this program, booked by rank. One for the process, made before anything is booked.
#pragma once

#include "simulation/heap_meter.h"

namespace mcast {

sim::HeapMeter& heap_meter();

}  // namespace mcast
