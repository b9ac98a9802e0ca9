// What the poster of an exchange (all_to_all, gather, scatter) hands over.
#pragma once

#include <cstdint>
#include <vector>

#include "base/region.h"

namespace mcast {

struct ExchangeArgs {
  // By rank: what goes there, what comes from there. The own ones are empty: whoever posts has
  // copied that block. No output overlaps another slice.
  std::vector<Slice> inputs, outputs;

  // That come here.
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Slice& output : outputs) sum += output.length;
    return sum;
  }
};

}  // namespace mcast
