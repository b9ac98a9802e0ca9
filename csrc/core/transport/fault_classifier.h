// Describes a message to the fault injector of the transport layer, so that faults can be targeted:
// "drop:type=fetch_data", "drop:type=data,last=1", "corrupt:type=data,chunk=3-9".
#pragma once

#include "transport/fault_spec.h"

namespace mcast {

// Lives as long as the process. Any thread.
const FaultClassifier& wire_fault_classifier();

}  // namespace mcast
