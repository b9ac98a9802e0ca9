// Test hook that receives the bytes of outputs in place of memory, so that a simulation of
// thousands of ranks needs no buffers and can check the data. Null in the product.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace mcast {

class Landing {
 public:
  virtual ~Landing() = default;
  // `bytes`, which are verified, belong to output `stream` from `offset` on. Called on the lane's
  // thread; valid during the call.
  virtual void place(uint32_t stream, uint64_t offset, ConstBytes bytes) = 0;
};

}  // namespace mcast
