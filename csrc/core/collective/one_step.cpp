// Small all_reduce: everybody multicasts its input, and everybody folds all of them.
//   1. A member copies its input, once it can be read, and multicasts the copy like the block of a
//      small all-gather. The others' inputs arrive in memory beside it.
//   2. When all are here it folds them in the order of the members, so results are the same bits on
//      all ranks and the same as in two steps.
// Cost, n bytes of input, P members: one step; every link carries n out and n (P - 1) in. Memory of
// n P bytes at every member, so make_plan() chooses it for small n P only.
#include "collective/one_step.h"

#include <cstring>
#include <memory>

#include "base/reduce_kernels.h"

namespace mcast {

OneStep::OneStep(const ReduceArgs& args, Member self, uint32_t members)
    : args_(args), self_(self), bytes_(args.inputs[0].length) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes_ * members);
  const auto all = std::make_shared<Region>(memory->data(), memory->size(), memory);
  for (uint32_t m = 0; m < members; m++) streams_.push_back({all, m * bytes_, bytes_});
  // A region of its own: its readable end says whether our input is here.
  Slice& own = streams_[self];
  own = {std::make_shared<Region>(own.data(), bytes_, std::move(memory)), 0, bytes_};
  own.region->set_readable(0);
  take_input();
}

bool OneStep::take_input() {
  const Slice& input = args_.inputs[0];
  if (taken_ || input.offset + bytes_ > input.region->readable()) return false;
  const Slice& own = streams_[self_];
  std::memcpy(own.data(), input.data(), bytes_);
  own.region->set_readable(bytes_);
  taken_ = true;
  return true;
}

void OneStep::fold() const {
  const Element e = args_.element;
  const Reduction r = args_.reduction;
  const size_t count = bytes_ / element_size(e);
  const auto members = static_cast<uint32_t>(streams_.size());
  std::vector<std::byte> acc(count * accumulator_size(e));
  fold_first(e, r, args_.factor, streams_[0].data(), acc.data(), count);
  for (uint32_t m = 1; m < members; m++) {
    fold_next(e, r, args_.factor, streams_[m].data(), acc.data(), count);
  }
  fold_finish(e, r, members, acc.data(), args_.output.data(), count);
}

}  // namespace mcast
