// Finds blocks that nothing has come for, without a timer per block: every sixteenth of the
// deadline it looks at a sixteenth of the table's places, so its work per turn does not depend on
// how many blocks wait. Pure; time is an argument.
#pragma once

#include <optional>

#include "aggregation/block_table.h"
#include "base/types.h"

namespace mcast::aggregation {

class Ageing {
 public:
  // `deadline`: silence after which a block is idle.
  explicit Ageing(Nanos deadline);

  // Call on every turn. At the end of a pass over the table: the block that has been idle for the
  // longest, if one is. So a block is told of between one and two deadlines after its last
  // contribution, and again with each pass as long as it is idle.
  std::optional<BlockKey> scan(const BlockTable& table, Nanos now);
  // When scan() has something to do.
  Nanos next() const { return next_; }

 private:
  static constexpr uint32_t kParts = 16;

  const Nanos deadline_, interval_;
  Nanos next_ = 0;
  uint32_t part_ = 0;
  std::optional<BlockKey> oldest_;  // of this pass
  Nanos oldest_touched_ = 0;
};

}  // namespace mcast::aggregation
