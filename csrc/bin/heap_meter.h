// The heap of this program, booked by rank. One for the process, made before anything is booked.
#pragma once

#include "transport/sim/heap_meter.h"

namespace mcast {

sim::HeapMeter& heap_meter();

}  // namespace mcast
