// The heap of this program, accounted by rank. One per process, made before any accounting.
#pragma once

#include "transport/sim/heap_meter.h"

namespace mcast {

sim::HeapMeter& heap_meter();

}  // namespace mcast
