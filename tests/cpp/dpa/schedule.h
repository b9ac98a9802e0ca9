// A random schedule of one worker: datagrams that are lost, late, repeated, of another length or of
// another operation; writes that complete at any time; slices that open and close.
#pragma once

#include <cstdint>
#include <string>

#include "dpa/rig.h"

namespace mcast::dpa {

struct Schedule {
  rig_flavour flavour = RIG_HEADER;
  rig_kernel kernel = nullptr;  // observed
  bool closing = true;          // slices retire in the middle
  bool failing = false;         // the NIC reports an error once
};

// Returns the error, or "".
std::string run_schedule(uint64_t seed, const Schedule& schedule);

}  // namespace mcast::dpa
