// OneStep: a small all_reduce of a group that uses the network, in one step.
//
// Threads: the lane's.
#pragma once

#include <vector>

#include "base/fold_order.h"
#include "collective/reduce_args.h"
#include "protocol/racks.h"

namespace mcast {

class OneStep {
 public:
  // `layout`: of all members, whose blocks it says.
  // `racks`: of members; outlive this, as `args`.
  OneStep(const ReduceArgs& args, Member self, const FoldLayout& layout, const Racks& racks);

  // Where everybody's input goes, by member. The own one is readable once take_input() has it.
  const std::vector<Slice>& streams() const { return streams_; }
  // Takes our input as soon as it can be read whole. True: it was taken now.
  bool take_input();
  // All streams are here: their fold, into the caller's output.
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
