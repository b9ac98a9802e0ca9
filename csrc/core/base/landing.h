// Where the bytes of outputs go instead of memory: who simulates ranks by the thousand has none for
// each, and checks what comes. Null in the product.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace mcast {

class Landing {
 public:
  virtual ~Landing() = default;
  // `bytes`, which are verified, belong to output `stream` from `offset` bytes on. Where the lane
  // runs; valid during the call.
  virtual void place(uint32_t stream, uint64_t offset, ConstBytes bytes) = 0;
};

}  // namespace mcast
