// Arguments of a reduction, as its caller posts them.
#pragma once

#include <algorithm>
#include <vector>

#include "base/element.h"
#include "base/region.h"

namespace mcast {

struct ReduceArgs {
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  double factor = 1;          // PREMUL_SUM: this rank's
  std::vector<Slice> inputs;  // reduce_scatter: by owner; otherwise one, the whole
  Slice output;  // reduce_scatter: this rank's block; otherwise the whole (reduce: root only)
  // This rank takes part without its input (collective/partial_reductions.h), which is never read.
  bool excused = false;

  // All of the inputs can be read: none is still being copied from a device.
  bool inputs_readable() const {
    return std::all_of(inputs.begin(), inputs.end(), [](const Slice& s) {
      return !s.region || s.offset + s.length <= s.region->readable();
    });
  }
};

}  // namespace mcast
