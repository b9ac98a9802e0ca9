// The fold of one segment: contributions that arrive in any order, each once, become one value
// whose bits depend only on a given order. All executors of a segment (its owner, a station on the
// way) use this class: the same code gives equal bits. Pure: no time, no sockets. Not thread-safe.
//
// Memory: the accumulator is the caller's. A contribution that arrives before its position in the
// order waits in a buffer of the pool, at most one per contributor; none waits if exact(). Once the
// pool has had as many buffers as are ever in use at once, folding does not allocate.
#pragma once

#include <vector>

#include "base/element.h"
#include "base/reduce_kernels.h"
#include "base/types.h"
#include "protocol/buffer_pool.h"

namespace mcast {

// Types and operation of a fold.
struct FoldRule {
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  uint32_t divisor = 1;  // AVG: divisor of the sum
  // Contributions are in elements of the accumulator: partial results of several contributors.
  bool wide = false;

  // Accumulator size of a segment that has `bytes` in elements of the result.
  constexpr size_t accumulator_bytes(size_t bytes) const noexcept {
    return bytes / element_size(element) * accumulator_size(element);
  }
  constexpr size_t contribution_bytes(size_t bytes) const noexcept {
    return wide ? accumulator_bytes(bytes) : bytes;
  }
};

// Returns true if the order of contributions does not affect the result: they are folded as they
// arrive. (False for floats, MIN and MAX included: of 0 and -0 the first stays.)
constexpr bool exact(const FoldRule& rule) noexcept { return !is_floating(rule.element); }

// The contributors, in the order of folding: `count` consecutive ones from `first` on, modulo the
// number of contributors. In a fold without the owner, which adds its own contribution last: first
// = owner + 1, count = contributors - 1.
struct FoldRun {
  uint32_t first = 0;
  uint32_t count = 0;
};

// Folds one segment at a time; reusable.
class SegmentFold {
 public:
  // `contributors`: their greatest number, at least 1. `pool` outlives this object.
  SegmentFold(uint32_t contributors, BufferPool& pool);
  ~SegmentFold();
  SegmentFold(SegmentFold&&) noexcept = default;
  SegmentFold& operator=(SegmentFold&&) = delete;

  // Begins the next segment; the previous one is discarded. `bytes`: of the result, whole elements.
  // `accumulator`: of rule.accumulator_bytes(bytes), not the memory of any contribution; must last
  // until the next begin(). `folded`: number of contributors of the run that it contains already (a
  // partial result from elsewhere). `run.count` <= contributors.
  void begin(const FoldRule& rule, const FoldRun& run, size_t bytes, std::byte* accumulator,
             uint32_t folded = 0);

  // Handles a contribution, which is read within the call: folded if it is next in order, with all
  // that have waited for it, else copied. `factor`: PREMUL_SUM. Returns false, without effect, if
  // its length is wrong, it is not of the run, or it has arrived already.
  bool add(uint32_t contributor, double factor, ConstBytes contribution);

  // The contribution will not arrive: the fold continues without it. No effect if it is not of the
  // run. Returns false if it has arrived.
  bool excuse(uint32_t contributor);
  // AVG: divides the sum by this from now on.
  void divide_by(uint32_t divisor) { rule_.divisor = divisor; }

  // Returns true if add() would fold it without a copy.
  bool in_turn(uint32_t contributor) const;
  // Returns true if its contribution has arrived, or was in the accumulator from the start, or is
  // excused.
  bool has(uint32_t contributor) const;
  // Number of contributions that are in the accumulator or excused; all: complete().
  uint32_t folded() const { return folded_; }
  bool complete() const { return folded_ == run_.count; }

  // Requires complete(), with not all excused. Writes the result: divided, rounded to the element.
  // `out`: of the `bytes` of begin(); may be the accumulator if that has elements of the same size.
  void finish(std::byte* out) const;
  // The accumulator: a partial result, to be continued with begin(..., folded) elsewhere.
  ConstBytes partial() const { return {accumulator_, rule_.accumulator_bytes(bytes_)}; }

 private:
  enum class State : uint8_t { kMissing, kWaiting, kFolded, kExcused };
  struct Contribution {
    State state = State::kMissing;
    double factor = 1;
    std::vector<std::byte> bytes;  // while it waits
  };

  uint32_t contributors() const { return static_cast<uint32_t>(contributions_.size()); }
  // Its place in the run; run_.count or more: not in the run.
  uint32_t place(uint32_t contributor) const {
    return contributor >= run_.first ? contributor - run_.first
                                     : contributor + contributors() - run_.first;
  }
  uint32_t at(uint32_t place) const {
    const uint32_t c = run_.first + place;
    return c < contributors() ? c : c - contributors();
  }
  void fold(Contribution& c, double factor, const std::byte* source);
  void fold_waiting();
  void give_back(Contribution& c);

  BufferPool* pool_;
  FoldRule rule_;
  FoldRun run_;
  size_t bytes_ = 0;
  std::byte* accumulator_ = nullptr;
  uint32_t folded_ = 0;
  bool empty_ = true;                        // the accumulator contains nothing yet
  std::vector<Contribution> contributions_;  // by contributor
};

}  // namespace mcast
