// Finds blocks whose contributions stay away, without a timer per block. Pure; time is an argument.
#pragma once

#include <optional>

#include "aggregation/fold/block_table.h"
#include "base/types.h"

namespace mcast::aggregation {

class Ageing {
 public:
  // `deadline`: time without a contribution after which a block is idle.
  explicit Ageing(Nanos deadline) : deadline_(deadline) {}

  // Call on every poll. Returns the block that has been idle for the longest, if one is: at most a
  // sixteenth of the deadline after it became idle, and again after each further deadline while it
  // stays so.
  std::optional<BlockKey> scan(const BlockTable& table, Nanos now);
  // When scan() has something to do.
  Nanos next() const { return next_; }

 private:
  const Nanos deadline_;
  Nanos next_ = 0;
};

}  // namespace mcast::aggregation
