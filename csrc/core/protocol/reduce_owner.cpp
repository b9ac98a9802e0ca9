// Segments in the window are folded independently and end in any order; the final part of the block
// is the run of ended ones at its front, because only that lets contributors go on and consumers
// read. Our own contribution is not taken: it is read in place when its turn comes.
#include "protocol/reduce_owner.h"

#include <algorithm>

namespace mcast {

ReduceOwner::ReduceOwner(const ReduceShape& shape, const std::byte* own, std::byte* out,
                         BufferPool& pool)
    : shape_(shape),
      own_(own),
      out_(out),
      pool_(pool),
      rule_{shape.element, shape.reduction, shape.divisor != 0 ? shape.divisor : shape.members},
      run_{first_folded(shape.order, shape.self, shape.members), shape.members},
      segments_(static_cast<uint32_t>((shape.bytes + shape.segment - 1) / shape.segment)),
      own_ready_(std::min<uint64_t>(shape.own_ready, shape.bytes)),
      arrived_(shape.members) {
  const bool overlap = out < own + shape.bytes && own < out + shape.bytes;
  direct_ = !overlap && accumulator_size(shape.element) == element_size(shape.element);
  const uint32_t live = shape.granted ? segments_ : std::min(segments_, shape.window);
  accumulations_.reserve(std::max(1u, live));
  while (accumulations_.size() < std::max(1u, live)) {
    accumulations_.push_back({SegmentFold(shape.members, pool), {}});
  }
  if (shape.granted) {
    granted_ = segments_;
    open(0);
  }
  // What comes first, or alone, is ours: no frame will bring it.
  own_ready(own_ready_);
}

ReduceOwner::~ReduceOwner() {
  for (Accumulation& s : accumulations_) pool_.give(std::move(s.own));
}

uint64_t ReduceOwner::final_bytes() const {
  return complete() ? shape_.bytes : static_cast<uint64_t>(folded_) * shape_.segment;
}

size_t ReduceOwner::length(uint32_t segment) const {
  const size_t at = static_cast<size_t>(segment) * shape_.segment;
  return std::min(shape_.segment, shape_.bytes - at);
}

void ReduceOwner::grant(uint32_t end) {
  const uint64_t most = static_cast<uint64_t>(folded_) + accumulations_.size();
  const uint32_t now = static_cast<uint32_t>(std::min<uint64_t>({end, most, segments_}));
  if (now <= granted_) return;
  const uint32_t from = granted_;
  granted_ = now;
  open(from);
  for (uint32_t s = from; s < granted_; s++) fold_own(s);
  finish_ready();
}

void ReduceOwner::open(uint32_t first) {
  for (uint32_t segment = first; segment < granted_; segment++) {
    Accumulation& s = accumulation(segment);
    std::byte* accumulator = out_ + static_cast<size_t>(segment) * shape_.segment;
    if (!direct_) {
      if (s.own.empty()) s.own = pool_.take(SegmentFold::accumulator_bytes(rule_, shape_.segment));
      accumulator = s.own.data();
    }
    s.fold.begin(rule_, run_, length(segment), accumulator);
  }
}

void ReduceOwner::fold_own(uint32_t segment) {
  SegmentFold& fold = accumulation(segment).fold;
  const size_t at = static_cast<size_t>(segment) * shape_.segment, bytes = length(segment);
  if (shape_.contributed || at + bytes > own_ready_ || !fold.in_turn(shape_.self)) return;
  fold.add(shape_.self, shape_.factor, {own_ + at, bytes});
}

void ReduceOwner::finish_ready() {
  for (; folded_ < granted_ && accumulation(folded_).fold.complete(); folded_++) {
    accumulation(folded_).fold.finish(out_ + static_cast<size_t>(folded_) * shape_.segment);
  }
}

bool ReduceOwner::accept(Member from, uint32_t segment, double factor, ConstBytes payload) {
  if (from >= shape_.members || from == shape_.self || segment >= granted_ ||
      segment != arrived_[from] || payload.size() != length(segment)) {
    return false;
  }
  arrived_in_all_++;
  take(from, segment, factor, payload);
  return true;
}

void ReduceOwner::contribute(ConstBytes payload) {
  take(shape_.self, contributed(), shape_.factor, payload);
}

void ReduceOwner::take(Member from, uint32_t segment, double factor, ConstBytes payload) {
  arrived_[from]++;
  accumulation(segment).fold.add(from, factor, payload);
  fold_own(segment);
  finish_ready();
}

void ReduceOwner::own_ready(uint64_t bytes) {
  own_ready_ = bytes;
  for (uint32_t s = folded_; s < granted_; s++) fold_own(s);
  finish_ready();
  // Alone: nobody asks for grants.
  while (shape_.members == 1 && folded_ == granted_ && granted_ < segments_) grant(granted_ + 1);
}

}  // namespace mcast
