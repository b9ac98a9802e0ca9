// The description of an operation on which all ranks must agree. Its 32-bit hash travels in every
// datagram and completion report, the whole of it in Describe frames when hashes differ.
#pragma once

#include <string>

#include "base/types.h"
#include "wire/bytes.h"

namespace mcast::wire {

// Number on the wire, name, whether it has a root, whether it reduces.
#define MCAST_KINDS(X)                                \
  X(kBroadcast, 1, "broadcast", true, false)          \
  X(kAllgather, 2, "all_gather", false, false)        \
  X(kBarrier, 3, "barrier", false, false)             \
  X(kReduceScatter, 4, "reduce_scatter", false, true) \
  X(kAllreduce, 5, "all_reduce", false, true)         \
  X(kReduce, 6, "reduce", true, true)                 \
  X(kAllToAll, 7, "all_to_all", false, false)         \
  X(kGather, 8, "gather", true, false)                \
  X(kScatter, 9, "scatter", true, false)

#define MCAST_KIND(name, number, ...) name = number,
enum class Kind : uint8_t { MCAST_KINDS(MCAST_KIND) };
#undef MCAST_KIND

struct KindRow {
  Kind kind;
  const char* name;
  bool rooted, reduces;
};
#define MCAST_KIND(name, number, text, rooted, reduces) {Kind::name, text, rooted, reduces},
inline constexpr KindRow kKinds[] = {MCAST_KINDS(MCAST_KIND)};
#undef MCAST_KIND
inline constexpr uint8_t kKindMax = sizeof kKinds / sizeof kKinds[0];

// `kind` must be valid.
constexpr const KindRow& row_of(Kind kind) noexcept {
  return kKinds[static_cast<uint8_t>(kind) - 1];
}
constexpr bool is_reduction(Kind kind) noexcept { return row_of(kind).reduces; }
constexpr bool is_rooted(Kind kind) noexcept { return row_of(kind).rooted; }
// Returns true if each block is for one rank only.
constexpr bool is_exchange(Kind kind) noexcept {
  return kind == Kind::kAllToAll || kind == Kind::kGather || kind == Kind::kScatter;
}
constexpr const char* kind_name(Kind kind) noexcept { return row_of(kind).name; }

struct Descriptor {
  Kind kind = Kind::kBarrier;
  // The caller's code of the element type, 0xff: unknown; for a reduction: mcast::Element.
  uint8_t element = 0;
  Member root = kNoMember;  // for rooted kinds
  // Length of one rank's block; for all_reduce and reduce: of the whole tensor; for all_to_all: 0,
  // since block lengths differ.
  uint64_t bytes = 0;
  std::string name;       // name of the public op, for people; not part of the hash
  uint8_t reduction = 0;  // mcast::Reduction; 0: not a reduction

  uint32_t hash() const noexcept;
  // "broadcast(4096 bytes, element 6, root 2)".
  std::string to_string() const;
  bool same(const Descriptor& other) const noexcept;
};

void put_descriptor(Writer& out, const Descriptor& descriptor);
bool parse_descriptor(ConstBytes body, Descriptor& descriptor);

}  // namespace mcast::wire
