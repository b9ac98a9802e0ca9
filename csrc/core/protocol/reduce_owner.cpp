// Places in the window are folded independently and end in any order; contributors go on when those
// at the front have ended, consumers read the run of final segments at the front of the block. The
// owner's contribution is not copied: it is read in place when its position in the order comes.
#include "protocol/reduce_owner.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mcast {

ReduceOwner::ReduceOwner(const ReduceShape& shape, const std::byte* own, std::byte* out,
                         BufferPool& pool)
    : shape_(shape),
      own_(own),
      out_(out),
      pool_(pool),
      rule_{shape.element, shape.reduction, shape.divisor != 0 ? shape.divisor : shape.members,
            shape.wide},
      run_{first_folded(shape.order, shape.self, shape.members), shape.members},
      listed_(shape.list.has_value()),
      segments_(static_cast<uint32_t>((shape.bytes + shape.segment - 1) / shape.segment)),
      own_ready_(std::min<uint64_t>(shape.own_ready, shape.bytes)) {
  arrived_.of.resize(shape.members);
  const bool overlap = out < own + shape.bytes && own < out + shape.bytes;
  direct_ = !overlap && accumulator_size(shape.element) == element_size(shape.element);
  if (listed_) {
    placing_.emplace(shape.members, pool);
    list_ = *shape.list;
    states_.assign(segments_, State::kElsewhere);
    for (const uint32_t segment : list_) states_[segment] = State::kListed;
  }
  static const Racks kOne;
  const Racks& racks = shape.racks != nullptr ? *shape.racks : kOne;
  const uint32_t live = shape.granted ? segments_ : std::min(segments_, shape.window);
  accumulations_.reserve(std::max(1u, live));
  while (accumulations_.size() < std::max(1u, live)) {
    accumulations_.push_back({RackFold(shape.members, racks, pool, pool), {}});
  }
  if (shape.granted) {
    granted_ = segments_;
    open(0);
  }
  // The owner's contribution may be first, or alone: then no frame triggers its fold.
  own_ready(own_ready_);
}

ReduceOwner::~ReduceOwner() {
  for (Accumulation& s : accumulations_) pool_.give(std::move(s.own));
}

uint64_t ReduceOwner::final_bytes() const {
  const uint32_t prefix = listed_ ? final_prefix_ : folded_;
  return complete() ? shape_.bytes : static_cast<uint64_t>(prefix) * shape_.segment;
}

size_t ReduceOwner::length(uint32_t segment) const {
  const size_t at = static_cast<size_t>(segment) * shape_.segment;
  return std::min(shape_.segment, shape_.bytes - at);
}

void ReduceOwner::grant(uint32_t end) {
  const uint64_t most = static_cast<uint64_t>(folded_) + accumulations_.size();
  const uint32_t now = static_cast<uint32_t>(std::min<uint64_t>({end, most, listed()}));
  if (now <= granted_) return;
  const uint32_t from = granted_;
  granted_ = now;
  open(from);
  for (uint32_t p = from; p < granted_; p++) fold_own(p);
  finish_ready();
}

void ReduceOwner::open(uint32_t first) {
  for (uint32_t place = first; place < granted_; place++) {
    const uint32_t segment = segment_at(place);
    Accumulation& s = accumulation(place);
    std::byte* accumulator = out_ + static_cast<size_t>(segment) * shape_.segment;
    if (!direct_) {
      if (s.own.empty()) s.own = pool_.take(rule_.accumulator_bytes(shape_.segment));
      accumulator = s.own.data();
    }
    s.fold.begin(rule_, run_, length(segment), accumulator);
    excuse_in(s.fold);
  }
}

void ReduceOwner::excuse_in(RackFold& fold) const {
  for (const Member m : excused_.members) fold.excuse(m);
}

void ReduceOwner::excuse(std::span<const Member> gone, uint32_t divisor) {
  excused_.members.assign(gone.begin(), gone.end());
  for (const Member m : gone) excused_.others += m == shape_.self ? 0 : 1;
  rule_.divisor = divisor;
  for (uint32_t p = folded_; p < granted_; p++) {
    RackFold& fold = accumulation(p).fold;
    fold.divide_by(divisor);
    excuse_in(fold);
    fold_own(p);
  }
  finish_ready();
}

void ReduceOwner::fold_own(uint32_t place) {
  RackFold& fold = accumulation(place).fold;
  const uint32_t segment = segment_at(place);
  const size_t at = static_cast<size_t>(segment) * shape_.segment, bytes = length(segment);
  if (shape_.contributed || at + bytes > own_ready_ || !fold.in_turn(shape_.self)) return;
  fold.add(shape_.self, shape_.factor, {own_ + at, bytes});
}

void ReduceOwner::finish_ready() {
  for (; folded_ < granted_ && accumulation(folded_).fold.complete(); folded_++) {
    const uint32_t segment = segment_at(folded_);
    accumulation(folded_).fold.finish(out_ + static_cast<size_t>(segment) * shape_.segment);
    if (listed_) set_final(segment);
  }
}

void ReduceOwner::set_final(uint32_t segment) {
  states_[segment] = State::kFinal;
  final_count_++;
  while (final_prefix_ < segments_ && states_[final_prefix_] == State::kFinal) final_prefix_++;
}

bool ReduceOwner::place_result(uint32_t segment, ConstBytes result) {
  if (!awaits(segment) || result.size() != length(segment)) return false;
  std::memcpy(out_ + static_cast<size_t>(segment) * shape_.segment, result.data(), result.size());
  set_final(segment);
  return true;
}

bool ReduceOwner::place_partial(uint32_t segment, ConstBytes partial, ConstBytes own) {
  if (!awaits(segment)) return false;
  const size_t bytes = length(segment);
  const bool excused = std::find(excused_.members.begin(), excused_.members.end(), shape_.self) !=
                       excused_.members.end();
  if ((!excused && own.size() != rule_.contribution_bytes(bytes)) ||
      partial.size() != rule_.accumulator_bytes(bytes)) {
    return false;
  }
  std::vector<std::byte> sum = pool_.take(partial.size());
  std::memcpy(sum.data(), partial.data(), partial.size());
  const uint32_t next = (shape_.self + 1u) % shape_.members;
  placing_->begin(rule_, {next, shape_.members}, bytes, sum.data(), shape_.members - 1);
  if (!excused) placing_->add(shape_.self, shape_.factor, own);
  placing_->finish(out_ + static_cast<size_t>(segment) * shape_.segment);
  pool_.give(std::move(sum));
  set_final(segment);
  return true;
}

void ReduceOwner::take_over(uint32_t segment) {
  states_[segment] = State::kListed;
  list_.push_back(segment);
}

bool ReduceOwner::accept(Member from, uint32_t place, double factor, ConstBytes payload) {
  if (from >= shape_.members || from == shape_.self || place >= granted_ ||
      place != arrived_.of[from] ||
      payload.size() != rule_.contribution_bytes(length(segment_at(place)))) {
    return false;
  }
  arrived_.in_all++;
  take(from, place, factor, payload);
  return true;
}

void ReduceOwner::contribute(ConstBytes payload) {
  take(shape_.self, contributed(), shape_.factor, payload);
}

void ReduceOwner::take(Member from, uint32_t place, double factor, ConstBytes payload) {
  arrived_.of[from]++;
  accumulation(place).fold.add(from, factor, payload);
  fold_own(place);
  finish_ready();
}

void ReduceOwner::own_ready(uint64_t bytes) {
  own_ready_ = bytes;
  for (uint32_t p = folded_; p < granted_; p++) fold_own(p);
  finish_ready();
  // With one member no frame requests grants.
  while (shape_.members == 1 && folded_ == granted_ && granted_ < segments_) grant(granted_ + 1);
}

}  // namespace mcast
