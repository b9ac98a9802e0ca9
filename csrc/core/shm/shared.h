// State that both lanes of a group of one host use.
#pragma once

#include <memory>
#include <vector>

#include "shm/control_block.h"
#include "shm/directory.h"
#include "shm/peer_registry.h"
#include "shm/segment.h"

namespace mcast {

struct HostShared {
  Segment segment;
  ControlBlock block;                                  // view of `segment`
  std::vector<std::shared_ptr<const HostPeer>> peers;  // by rank; null for this rank
  // If one process runs all these ranks: the memory that this one lets the others read, and that
  // they let it read, by rank. Else null and empty.
  std::shared_ptr<Published> own;
  std::vector<std::shared_ptr<const Published>> theirs;
};

}  // namespace mcast
