// What reductions of patterns (content.h) must give, bit for bit.
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

// How contributions are folded; empty where it does not apply.
struct Folding {
  std::vector<uint32_t> host_of = {};   // ranks of a host are folded first, and that is rounded
  bool in_turn = false;                 // setting fold=turn
  std::vector<std::string> racks = {};  // by rank: contributions are folded in brackets of racks
  std::vector<Member> absent = {};      // inputs are missing; not with hosts or racks
};

// A reduction of `bytes` of every rank's pattern, from byte `from` on. `owner`, if any: its
// (host's) contribution is the last, the one after it the first.
std::vector<std::byte> reduced(uint64_t op, uint32_t ranks, Element element, Reduction reduction,
                               size_t from, size_t bytes, const Folding& folding = {},
                               std::optional<uint32_t> owner = {});

// The same of other inputs: at `input(rank, from, bytes)` are that many bytes of a rank's.
using InputOf = std::function<const std::byte*(uint32_t rank, size_t from, size_t bytes)>;
std::vector<std::byte> reduced_of(const InputOf& input, uint32_t ranks, Element element,
                                  Reduction reduction, size_t from, size_t bytes,
                                  std::optional<uint32_t> owner);

// The result of an operation at `rank`: of a reduce_scatter its block of `bytes`, else all of them.
std::vector<std::byte> expected_result(wire::Kind kind, uint64_t op, uint32_t ranks, Member rank,
                                       Element element, Reduction reduction, size_t bytes,
                                       const Folding& folding);

// Index of the first byte at which `have` is not `want`, want.size() if there is none; which of
// several NaNs survives is not promised.
size_t first_difference(Element element, const std::byte* have, const std::vector<std::byte>& want);

}  // namespace mcast::sim
