// Inputs and results of a reduction by ranks that are too many for memory of their own: all inputs
// are windows of one short period of numbers, mapped again and again; the result is computed once
// from where each rank's window begins, in the order in which the engine must fold. Results that
// come by multicast go to ledgers (content.h), and only owners write theirs.
// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "base/element.h"
#include "simulation/content.h"
#include "wire/descriptor.h"

namespace mcast::sim {

class Contributions {
 public:
  struct Shape {
    wire::Kind kind = wire::Kind::kAllreduce;  // or kReduceScatter
    uint64_t op = 0;
    uint32_t ranks = 0;
    size_t bytes = 0;  // of the whole vector; each rank owns as much of it
    Element element = Element::kFloat32;
    Reduction reduction = Reduction::kSum;
    bool in_turn = false;  // setting fold=turn
    bool operator==(const Shape&) const = default;
  };
  // Whether there are contents for this. Others need memory.
  static bool serve(const Shape& shape);

  explicit Contributions(const Shape& shape);
  ~Contributions();
  Contributions(const Contributions&) = delete;
  Contributions& operator=(const Contributions&) = delete;

  const Shape& shape() const { return shape_; }
  // From byte `from` of a rank's whole input on. Nobody can write to it.
  Slice input(uint32_t rank, size_t from, size_t bytes) const;
  // An all_reduce's, of all ranks: each owner writes its part, nobody else anything.
  Slice output() const;
  // What must come; stream `s` is owner s's.
  const std::shared_ptr<const Reference>& result() const { return result_; }
  // "", or what is wrong with the result that owner `rank` has made at `have`.
  std::string verdict(uint32_t rank, const std::byte* have) const;

 private:
  size_t window_of(uint32_t rank) const;
  void fill();
  std::shared_ptr<Pages> fold() const;

  const Shape shape_;
  std::byte* numbers_ = nullptr;  // the period, again and again
  size_t mapped_ = 0;
  std::shared_ptr<Region> inputs_;
  std::shared_ptr<const Reference> result_;
  std::shared_ptr<Pages> output_;
};

}  // namespace mcast::sim
