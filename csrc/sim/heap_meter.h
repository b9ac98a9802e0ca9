// The heap of this program, accounted by rank. One per process, made before any accounting.
#pragma once

#include "sim/network/heap_meter.h"

namespace mcast {

sim::HeapMeter& heap_meter();

}  // namespace mcast
