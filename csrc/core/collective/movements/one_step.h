// OneStep: a small all_reduce in one step, for a group that uses the network.
//
// Threads: the lane's.
#pragma once

#include <vector>

#include "base/fold_order.h"
#include "collective/movements/reduce_args.h"
#include "protocol/racks.h"

namespace mcast {

class OneStep {
 public:
  // `layout`: for all members, whose blocks it describes. `racks`: of members; `racks` and `args`
  // outlive this.
  OneStep(const ReduceArgs& args, Member self, const FoldLayout& layout, const Racks& racks);

  // Destination of each member's input, by member. Our own is readable once take_input() has copied
  // it.
  const std::vector<Slice>& streams() const { return streams_; }
  // Takes our input once all of it can be read. Returns true if this call took it.
  bool take_input();
  // Called when all streams are here: folds them into the caller's output.
  void fold() const;

 private:
  void fold_racks(size_t at, size_t count, uint32_t first, std::vector<std::byte>& acc) const;

  const ReduceArgs& args_;
  const Member self_;
  const FoldLayout layout_;
  const Racks& racks_;
  const size_t bytes_;
  bool taken_ = false;
  std::vector<Slice> streams_;
};

}  // namespace mcast
