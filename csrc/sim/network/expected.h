// Expected results of reductions of patterns (content.h), exact to the bit.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/element.h"
#include "base/types.h"
#include "wire/descriptor.h"

namespace mcast::sim {

// The factor of a rank in PREMUL_SUM.
inline double factor_of(uint32_t rank) { return 0.5 + rank; }

// How contributions are folded; fields are empty where they do not apply.
struct Folding {
  // Ranks of a host are folded first, and that result is rounded.
  std::vector<uint32_t> host_of = {};
  bool in_turn = false;  // setting fold=turn
  // By rank: contributions are folded rack by rack, in brackets.
  std::vector<std::string> racks = {};
  std::vector<Member> absent = {};  // members whose inputs are missing; not with hosts or racks
};

// A reduction of `bytes` of every rank's pattern, from byte `from` on. If `owner` is given, its
// (host's) contribution is folded last, and the one after it first.
std::vector<std::byte> reduced(uint64_t op, uint32_t ranks, Element element, Reduction reduction,
                               size_t from, size_t bytes, const Folding& folding = {},
                               std::optional<uint32_t> owner = {});

// The same for other inputs: `input(rank, from, bytes)` points to that many bytes of a rank's
// input.
using InputOf = std::function<const std::byte*(uint32_t rank, size_t from, size_t bytes)>;
std::vector<std::byte> reduced_of(const InputOf& input, uint32_t ranks, Element element,
                                  Reduction reduction, size_t from, size_t bytes,
                                  std::optional<uint32_t> owner);

// The result of an operation at `rank`: for a reduce_scatter its block of `bytes`, else all bytes.
std::vector<std::byte> expected_result(wire::Kind kind, uint64_t op, uint32_t ranks, Member rank,
                                       Element element, Reduction reduction, size_t bytes,
                                       const Folding& folding);

// Index of the first byte at which `have` differs from `want`; want.size() if none does. Any NaN
// equals any other, since it is unspecified which of several NaNs survives.
size_t first_difference(Element element, const std::byte* have, const std::vector<std::byte>& want);

}  // namespace mcast::sim
