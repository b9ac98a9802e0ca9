// What both lanes of a group of one host use.
#pragma once

#include <memory>
#include <vector>

#include "host/control_block.h"
#include "host/peer_registry.h"
#include "host/segment.h"

namespace mcast {

struct HostShared {
  Segment segment;
  ControlBlock block;                                  // in it
  std::vector<std::shared_ptr<const HostPeer>> peers;  // by rank; null for the own
};

}  // namespace mcast
