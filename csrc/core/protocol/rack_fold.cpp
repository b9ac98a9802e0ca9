// Each rack is a separate fold. The first one's accumulator is the caller's; it then takes the
// other racks' sums, each as soon as it is complete and those before it have been added. So racks
// are folded concurrently: contributions that arrive early in one do not wait for another.
#include "protocol/rack_fold.h"

#include <cassert>
#include <cstring>

#include "base/reduce_kernels.h"

namespace mcast {

RackFold::RackFold(uint32_t contributors, const Racks& racks, BufferPool& pool, BufferPool& sums)
    : racks_(&racks), sums_(&sums) {
  if (racks.flat()) {
    folds_.push_back({SegmentFold(contributors, pool), {}});
    return;
  }
  for (uint32_t r = 0; r < racks.count(); r++) {
    folds_.push_back({SegmentFold(static_cast<uint32_t>(racks.members(r).size()), pool), {}});
  }
}

RackFold::~RackFold() {
  for (Rack& rack : folds_) give_back(rack);
}

void RackFold::begin(const FoldRule& rule, const FoldRun& run, size_t bytes, std::byte* accumulator,
                     std::optional<uint32_t> only) {
  rule_ = rule;
  bytes_ = bytes;
  accumulator_ = accumulator;
  only_ = only;
  combined_ = 0;
  if (racks_->flat()) return folds_[0].fold.begin(rule, run, bytes, accumulator);
  for (uint32_t r = 0; r < folds_.size(); r++) {
    Rack& rack = folds_[r];
    give_back(rack);
    rack.given = rack.begun = false;
    if (only && r != *only) continue;
    std::byte* at = accumulator;
    if (!only && r > 0) {
      rack.sum = sums_->take(rule.accumulator_bytes(bytes));
      at = rack.sum.data();
    }
    begin_rack(r, run, at);
  }
}

void RackFold::begin_rack(uint32_t rack, const FoldRun& run, std::byte* accumulator) {
  const FoldRun part{racks_->first_place(rack, run.first),
                     static_cast<uint32_t>(racks_->members(rack).size())};
  folds_[rack].fold.begin(rule_, part, bytes_, accumulator);
}

bool RackFold::add(uint32_t contributor, double factor, ConstBytes contribution) {
  if (racks_->flat()) return folds_[0].fold.add(contributor, factor, contribution);
  const uint32_t r = racks_->rack_of(contributor);
  Rack& rack = folds_[r];
  if ((only_ && r != *only_) || rack.given ||
      !rack.fold.add(racks_->place_of(contributor), factor, contribution)) {
    return false;
  }
  rack.begun = true;
  if (!only_ && rack.fold.complete()) combine();
  return true;
}

bool RackFold::excuse(uint32_t contributor) {
  assert(racks_->flat());
  return folds_[0].fold.excuse(contributor);
}

bool RackFold::add_rack(uint32_t r, ConstBytes sum) {
  if (racks_->flat() || only_ || r >= folds_.size()) return false;
  Rack& rack = folds_[r];
  if (rack.given || rack.begun || sum.size() != rule_.accumulator_bytes(bytes_)) {
    return false;
  }
  rack.given = true;
  if (r > 0 && r == combined_) {  // in turn: straight from the frame
    fold_sum(sum.data());
    give_back(rack);
    combined_++;
  } else {
    std::memcpy(r == 0 ? accumulator_ : rack.sum.data(), sum.data(), sum.size());
  }
  combine();
  return true;
}

void RackFold::combine() {
  for (; combined_ < folds_.size() && ready(folds_[combined_]); combined_++) {
    if (combined_ == 0) continue;
    fold_sum(folds_[combined_].sum.data());
    give_back(folds_[combined_]);
  }
}

void RackFold::fold_sum(const std::byte* sum) {
  fold_partial(rule_.element, rule_.reduction, sum, accumulator_,
               bytes_ / element_size(rule_.element));
}

bool RackFold::in_turn(uint32_t contributor) const {
  if (racks_->flat()) return folds_[0].fold.in_turn(contributor);
  const Rack& rack = folds_[racks_->rack_of(contributor)];
  return !rack.given && rack.fold.in_turn(racks_->place_of(contributor));
}

bool RackFold::complete() const {
  if (racks_->flat()) return folds_[0].fold.complete();
  return only_ ? folds_[*only_].fold.complete() : combined_ == folds_.size();
}

void RackFold::finish(std::byte* out) const {
  fold_finish(rule_.element, rule_.reduction, rule_.divisor, accumulator_, out,
              bytes_ / element_size(rule_.element));
}

void RackFold::give_back(Rack& rack) {
  if (!rack.sum.empty()) sums_->give(std::move(rack.sum));
  rack.sum = {};
}

}  // namespace mcast
