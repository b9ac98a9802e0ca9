// Small all_reduce: every member multicasts its input and folds all inputs.
//   1. A member copies its input once it can be read, and multicasts the copy like the block of a
//      small all-gather. The others' inputs arrive in memory next to it.
//   2. When all are here, it folds each element in the order that the element's owner would use in
//      two steps, so the bits of the result are the same on all ranks and with both algorithms.
// Cost, n bytes of input, P members: one step; every link sends n and receives n (P - 1). Every
// member needs memory of n P bytes, so make_plan() chooses it for small n P only.
#include "collective/movements/one_step.h"

#include <cstring>
#include <memory>

#include "base/reduce_kernels.h"

namespace mcast {

OneStep::OneStep(const ReduceArgs& args, Member self, const FoldLayout& layout, const Racks& racks)
    : args_(args), self_(self), layout_(layout), racks_(racks), bytes_(args.inputs[0].length) {
  const uint32_t members = layout.contributors;
  auto memory = std::make_shared<std::vector<std::byte>>(bytes_ * members);
  const auto all = std::make_shared<Region>(memory->data(), memory->size(), memory);
  for (uint32_t m = 0; m < members; m++) streams_.push_back({all, m * bytes_, bytes_});
  // A separate region: its readable end shows whether our input is here.
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
  const uint32_t members = layout_.contributors;
  std::vector<std::byte> acc(bytes_ / element_size(e) * accumulator_size(e));
  layout_.for_each_part(0, bytes_, [&](size_t at, size_t bytes, uint32_t first) {
    const size_t count = bytes / element_size(e);
    if (racks_.flat()) {
      fold_first(e, r, args_.factor, streams_[first].data() + at, acc.data(), count);
      for (uint32_t i = 1; i < members; i++) {
        const uint32_t m = (first + i) % members;
        fold_next(e, r, args_.factor, streams_[m].data() + at, acc.data(), count);
      }
    } else {
      fold_racks(at, count, first, acc);
    }
    fold_finish(e, r, members, acc.data(), args_.output.data() + at, count);
  });
}

// Grouped by racks, as in protocol/rack_fold.h.
void OneStep::fold_racks(size_t at, size_t count, uint32_t first,
                         std::vector<std::byte>& acc) const {
  const Element e = args_.element;
  const Reduction r = args_.reduction;
  std::vector<std::byte> sum(acc.size());
  for (uint32_t rack = 0; rack < racks_.count(); rack++) {
    const std::vector<uint32_t>& all = racks_.members(rack);
    std::byte* const into = rack == 0 ? acc.data() : sum.data();
    for (size_t i = 0; i < all.size(); i++) {
      const uint32_t m = all[(racks_.first_place(rack, first) + i) % all.size()];
      (i == 0 ? fold_first : fold_next)(e, r, args_.factor, streams_[m].data() + at, into, count);
    }
    if (rack > 0) fold_partial(e, r, sum.data(), acc.data(), count);
  }
}

}  // namespace mcast
