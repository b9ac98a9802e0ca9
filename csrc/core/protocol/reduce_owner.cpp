// A contribution whose turn it is goes straight from the frame into the accumulator; one that is
// early is waiting until those before it have come. Segments in the window progress independently
// and end in any order; the final part of the block is the run of ended ones at its front, because
// only that lets contributors go on and consumers read.
#include "protocol/reduce_owner.h"

#include <algorithm>

#include "base/reduce_kernels.h"

namespace mcast {

std::vector<std::byte> BufferPool::take(size_t size) {
  if (free_.empty()) return std::vector<std::byte>(size);
  std::vector<std::byte> buffer = std::move(free_.back());
  free_.pop_back();
  buffer.resize(size);
  return buffer;
}

void BufferPool::give(std::vector<std::byte> buffer) {
  if (free_.size() < kMost && buffer.capacity() > 0) free_.push_back(std::move(buffer));
}

ReduceOwner::ReduceOwner(const ReduceShape& shape, const std::byte* own, std::byte* out,
                         BufferPool& pool)
    : shape_(shape),
      own_(own),
      out_(out),
      pool_(pool),
      segments_(static_cast<uint32_t>((shape.bytes + shape.segment - 1) / shape.segment)),
      own_ready_(std::min<uint64_t>(shape.own_ready, shape.bytes)),
      arrived_(shape.members) {
  const bool overlap = out < own + shape.bytes && own < out + shape.bytes;
  direct_ = !overlap && accumulator_size(shape.element) == element_size(shape.element);
  if (shape.granted) granted_ = segments_;
  const uint32_t live = shape.granted ? segments_ : std::min(segments_, shape.window);
  accumulations_.resize(std::max(1u, live));
  for (Accumulation& s : accumulations_) s.waiting.resize(shape.members);
  // What comes first, or alone, is ours: no frame will bring it.
  own_ready(own_ready_);
}

ReduceOwner::~ReduceOwner() {
  for (Accumulation& s : accumulations_) {
    pool_.give(std::move(s.own));
    for (Waiting& c : s.waiting) pool_.give(std::move(c.bytes));
  }
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
  for (uint32_t s = from; s < granted_; s++) advance(s);
  finish_ready();
}

std::byte* ReduceOwner::accumulator(Accumulation& s, uint32_t segment) {
  if (direct_) return out_ + static_cast<size_t>(segment) * shape_.segment;
  if (s.own.empty()) {
    const size_t count = shape_.segment / element_size(shape_.element);
    s.own = pool_.take(count * accumulator_size(shape_.element));
  }
  return s.own.data();
}

void ReduceOwner::fold(Accumulation& s, uint32_t segment, double factor, const std::byte* source) {
  const size_t count = length(segment) / element_size(shape_.element);
  std::byte* acc = accumulator(s, segment);
  if (s.next == 0) {
    fold_first(shape_.element, shape_.reduction, factor, source, acc, count);
  } else {
    fold_next(shape_.element, shape_.reduction, factor, source, acc, count);
  }
  s.next++;
}

void ReduceOwner::advance(uint32_t segment) {
  Accumulation& s = accumulation(segment);
  while (s.next < shape_.members) {
    if (s.next == shape_.self && !shape_.contributed) {
      const size_t at = static_cast<size_t>(segment) * shape_.segment;
      if (at + length(segment) > own_ready_) return;
      fold(s, segment, shape_.factor, own_ + at);
      continue;
    }
    Waiting& c = s.waiting[s.next];
    if (c.bytes.empty()) return;
    fold(s, segment, c.factor, c.bytes.data());
    pool_.give(std::move(c.bytes));
    c.bytes = {};
  }
}

void ReduceOwner::finish_ready() {
  while (folded_ < granted_ && accumulation(folded_).next == shape_.members) {
    Accumulation& s = accumulation(folded_);
    const size_t count = length(folded_) / element_size(shape_.element);
    fold_finish(shape_.element, shape_.reduction,
                shape_.divisor != 0 ? shape_.divisor : shape_.members, accumulator(s, folded_),
                out_ + static_cast<size_t>(folded_) * shape_.segment, count);
    s.next = 0;
    folded_++;
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
  Accumulation& s = accumulation(segment);
  if (s.next == from) {
    fold(s, segment, factor, payload.data());
    advance(segment);
    finish_ready();
  } else {
    Waiting& c = s.waiting[from];
    c.bytes = pool_.take(payload.size());
    c.factor = factor;
    std::copy(payload.begin(), payload.end(), c.bytes.begin());
  }
}

void ReduceOwner::own_ready(uint64_t bytes) {
  own_ready_ = bytes;
  if (shape_.members == 1) granted_ = std::min(segments_, folded_ + 1);
  for (;;) {
    for (uint32_t s = folded_; s < granted_; s++) advance(s);
    const uint32_t before = folded_;
    finish_ready();
    if (shape_.members > 1 || folded_ == before || folded_ == segments_) return;
    granted_ = folded_ + 1;
  }
}

}  // namespace mcast
