// Arguments of an exchange (all_to_all, gather, scatter), as its caller posts them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/region.h"

namespace mcast {

struct ExchangeArgs {
  // By rank: data to send to it, and memory for data from it. This member's own slices are empty:
  // the caller has copied that block. No output overlaps another slice.
  std::vector<Slice> inputs, outputs;

  // Total bytes to receive.
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Slice& output : outputs) sum += output.length;
    return sum;
  }
};

}  // namespace mcast
