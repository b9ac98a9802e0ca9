// The fold of one segment: contributions that come in any order, each once, become one value whose
// bits depend on a given order alone. Whoever folds a segment, its owner or a station on the way,
// does it here: equal bits are the same code. Pure: no time, no sockets. Not thread-safe.
//
// Memory: the accumulator is the caller's. A contribution that comes before its turn waits in a
// buffer of the pool, at most one per contributor; none does where exact(). Nothing is allocated
// once the pool has had as many buffers as are ever in use at once.
#pragma once

#include <vector>

#include "base/element.h"
#include "base/reduce_kernels.h"
#include "base/types.h"
#include "protocol/buffer_pool.h"

namespace mcast {

// What is folded, and how.
struct FoldRule {
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  uint32_t divisor = 1;  // AVG: of the sum
  bool wide = false;     // contributions are in elements of the accumulator: of several, folded

  // Of a segment that has `bytes` in elements of the result.
  constexpr size_t accumulator_bytes(size_t bytes) const noexcept {
    return bytes / element_size(element) * accumulator_size(element);
  }
  constexpr size_t contribution_bytes(size_t bytes) const noexcept {
    return wide ? accumulator_bytes(bytes) : bytes;
  }
};

// Whether the order of contributions does not show: they are folded as they come. (Not for floats,
// MIN and MAX included: of 0 and -0 the first stays.)
constexpr bool exact(const FoldRule& rule) noexcept { return !is_floating(rule.element); }

// Who contributes, in the order of folding: `count` in a row from `first` on, modulo the number of
// contributors. A fold without the owner, which adds its own as the last: first = owner + 1,
// count = contributors - 1.
struct FoldRun {
  uint32_t first = 0;
  uint32_t count = 0;
};

// One at a time, again and again.
class SegmentFold {
 public:
  // `contributors`: that there can be, 1 at least. `pool` outlives this object.
  SegmentFold(uint32_t contributors, BufferPool& pool);
  ~SegmentFold();
  SegmentFold(SegmentFold&&) noexcept = default;
  SegmentFold& operator=(SegmentFold&&) = delete;

  // The next segment; what is left of the one before is forgotten. `bytes`: of the
  // result, whole elements. `accumulator`: of rule.accumulator_bytes(bytes), not the memory of any
  // contribution, must last until the next begin(). `folded`: of the run, so many are in it already
  // (a partial result from elsewhere). `run.count` <= contributors.
  void begin(const FoldRule& rule, const FoldRun& run, size_t bytes, std::byte* accumulator,
             uint32_t folded = 0);

  // A contribution, which is read now: folded if it is its turn, with all that have waited for it,
  // else copied. `factor`: PREMUL_SUM. False, and nothing happens: of another length, not of the
  // run, or here already.
  bool add(uint32_t contributor, double factor, ConstBytes contribution);

  // Will not come: the fold goes on without it. Nothing happens where it is not of the run. False:
  // it has come.
  bool excuse(uint32_t contributor);
  // AVG: of the sum, from now on.
  void divide_by(uint32_t divisor) { rule_.divisor = divisor; }

  // Whether add() would fold it without a copy.
  bool in_turn(uint32_t contributor) const;
  // Whether its contribution has come, or was in the accumulator from the start, or is excused.
  bool has(uint32_t contributor) const;
  // Contributions that are in the accumulator or excused; all of them: complete().
  uint32_t folded() const { return folded_; }
  bool complete() const { return folded_ == run_.count; }

  // When complete(), and not all are excused. The result: divided, rounded to the element. `out`:
  // of the `bytes` of begin(); may be the accumulator where that has elements of the same
  // size.
  void finish(std::byte* out) const;
  // The accumulator: a partial result, to be gone on with by begin(..., folded) elsewhere.
  ConstBytes partial() const { return {accumulator_, rule_.accumulator_bytes(bytes_)}; }

 private:
  enum class State : uint8_t { kMissing, kWaiting, kFolded, kExcused };
  struct Contribution {
    State state = State::kMissing;
    double factor = 1;
    std::vector<std::byte> bytes;  // while it waits
  };

  uint32_t contributors() const { return static_cast<uint32_t>(contributions_.size()); }
  // Its place in the run; run_.count or more: it has none.
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
  bool empty_ = true;                        // nothing is in the accumulator
  std::vector<Contribution> contributions_;  // by contributor
};

}  // namespace mcast
