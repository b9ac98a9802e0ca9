// Inputs and results of a reduction by too many ranks for memory of their own. All inputs are
// windows of one short period of numbers, mapped repeatedly; the result is computed once from the
// start of each rank's window, in the order in which the engine must fold. Results that arrive by
// multicast go to ledgers (content.h); only owners write their result to memory.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "base/element.h"
#include "sim/network/content.h"
#include "wire/descriptor.h"

namespace mcast::sim {

class Contributions {
 public:
  struct Shape {
    wire::Kind kind = wire::Kind::kAllreduce;  // or kReduceScatter
    uint64_t op = 0;
    uint32_t ranks = 0;
    size_t bytes = 0;  // of the whole vector, which each rank has in full
    Element element = Element::kFloat32;
    Reduction reduction = Reduction::kSum;
    bool in_turn = false;  // setting fold=turn
    bool operator==(const Shape&) const = default;
  };
  // Returns true if this class has contents for the shape. Other shapes need memory.
  static bool serve(const Shape& shape);

  explicit Contributions(const Shape& shape);
  ~Contributions();
  Contributions(const Contributions&) = delete;
  Contributions& operator=(const Contributions&) = delete;

  const Shape& shape() const { return shape_; }
  // A rank's whole input from byte `from` on, mapped read-only.
  Slice input(uint32_t rank, size_t from, size_t bytes) const;
  // Output of an all_reduce, shared by all ranks: each owner writes its part, and nobody writes
  // elsewhere.
  Slice output() const;
  // The expected result; stream `s` belongs to owner `s`.
  const std::shared_ptr<const Reference>& result() const { return result_; }
  // Returns "", or what is wrong with the result that owner `rank` has computed at `have`.
  std::string verdict(uint32_t rank, const std::byte* have) const;

 private:
  size_t window_of(uint32_t rank) const;
  void fill();
  std::shared_ptr<Pages> fold() const;

  const Shape shape_;
  std::byte* numbers_ = nullptr;  // the period, mapped repeatedly
  size_t mapped_ = 0;
  std::shared_ptr<Region> inputs_;
  std::shared_ptr<const Reference> result_;
  std::shared_ptr<Pages> output_;
};

}  // namespace mcast::sim
