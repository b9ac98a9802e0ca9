// A contribution that is next in order is folded directly from the frame, followed by those that
// have waited for it; an early one is copied and waits. If the order does not affect the result
// (integers, bool), every contribution is next in order when it arrives. Since a run is folded from
// its start, the next in order is given by the number of contributions that are in the accumulator
// or will not arrive.
#include "protocol/segment_fold.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace mcast {

SegmentFold::SegmentFold(uint32_t contributors, BufferPool& pool)
    : pool_(&pool), contributions_(contributors) {}

SegmentFold::~SegmentFold() {
  for (Contribution& c : contributions_) give_back(c);
}

void SegmentFold::begin(const FoldRule& rule, const FoldRun& run, size_t bytes,
                        std::byte* accumulator, uint32_t folded) {
  assert(run.first < contributors() && run.count <= contributors() && folded <= run.count);
  for (Contribution& c : contributions_) {
    give_back(c);
    c.state = State::kMissing;
  }
  rule_ = rule;
  run_ = run;
  bytes_ = bytes;
  accumulator_ = accumulator;
  folded_ = folded;
  empty_ = folded == 0;
  for (uint32_t i = 0; i < folded; i++) contributions_[at(i)].state = State::kFolded;
}

bool SegmentFold::in_turn(uint32_t contributor) const {
  if (contributor >= contributors() || contributions_[contributor].state != State::kMissing) {
    return false;
  }
  return exact(rule_) ? place(contributor) < run_.count
                      : folded_ < run_.count && place(contributor) == folded_;
}

bool SegmentFold::has(uint32_t contributor) const {
  return contributor < contributors() && contributions_[contributor].state != State::kMissing;
}

bool SegmentFold::add(uint32_t contributor, double factor, ConstBytes contribution) {
  if (contributor >= contributors() || place(contributor) >= run_.count || has(contributor) ||
      contribution.size() != rule_.contribution_bytes(bytes_)) {
    return false;
  }
  Contribution& c = contributions_[contributor];
  if (!in_turn(contributor)) {
    c.state = State::kWaiting;
    c.factor = factor;
    c.bytes = pool_->take(contribution.size());
    std::copy(contribution.begin(), contribution.end(), c.bytes.begin());
    return true;
  }
  fold(c, factor, contribution.data());
  fold_waiting();
  return true;
}

bool SegmentFold::excuse(uint32_t contributor) {
  if (contributor >= contributors() || place(contributor) >= run_.count) return true;
  Contribution& c = contributions_[contributor];
  if (c.state == State::kExcused) return true;
  if (c.state != State::kMissing) return false;
  c.state = State::kExcused;
  if (exact(rule_)) folded_++;
  fold_waiting();
  return true;
}

// Continues while the next in order has arrived, or will not arrive.
void SegmentFold::fold_waiting() {
  while (!exact(rule_) && !complete()) {
    Contribution& next = contributions_[at(folded_)];
    if (next.state == State::kExcused) {
      folded_++;
    } else if (next.state == State::kWaiting) {
      fold(next, next.factor, next.bytes.data());
      give_back(next);
    } else {
      return;
    }
  }
}

void SegmentFold::fold(Contribution& c, double factor, const std::byte* source) {
  const size_t count = bytes_ / element_size(rule_.element);
  if (!rule_.wide) {
    (empty_ ? fold_first : fold_next)(rule_.element, rule_.reduction, factor, source, accumulator_,
                                      count);
  } else if (empty_) {
    std::memcpy(accumulator_, source, rule_.accumulator_bytes(bytes_));
  } else {
    fold_partial(rule_.element, rule_.reduction, source, accumulator_, count);
  }
  empty_ = false;
  c.state = State::kFolded;
  folded_++;
}

void SegmentFold::give_back(Contribution& c) {
  if (!c.bytes.empty()) pool_->give(std::move(c.bytes));
  c.bytes = {};
}

void SegmentFold::finish(std::byte* out) const {
  fold_finish(rule_.element, rule_.reduction, rule_.divisor, accumulator_, out,
              bytes_ / element_size(rule_.element));
}

}  // namespace mcast
