// What an operation is, as all ranks must agree on it. Its 32-bit hash travels in every datagram
// and completion report, the whole of it in Describe frames when hashes differ.
#pragma once

#include <string>

#include "base/types.h"
#include "wire/bytes.h"

namespace mcast::wire {

enum class Kind : uint8_t {
  kBroadcast = 1,
  kAllgather = 2,
  kBarrier = 3,
  kReduceScatter = 4,
  kAllreduce = 5,
  kReduce = 6,
};
inline constexpr uint8_t kKindMax = 6;
constexpr bool is_reduction(Kind kind) noexcept { return kind >= Kind::kReduceScatter; }
const char* kind_name(Kind kind) noexcept;

struct Descriptor {
  Kind kind = Kind::kBarrier;
  uint8_t element = 0;      // the caller's code of the element type; 0xff: not known
  Member root = kNoMember;  // broadcast and reduce
  uint64_t bytes = 0;       // of one rank's block; all_reduce and reduce: of the whole tensor
  std::string name;         // name of the public op, for people; not part of the hash
  uint8_t reduction = 0;    // mcast::Reduction; 0 where nothing is reduced

  uint32_t hash() const noexcept;
  // "broadcast(4096 bytes, element 6, root 2)".
  std::string to_string() const;
  bool same(const Descriptor& other) const noexcept;
};

void put_descriptor(Writer& out, const Descriptor& descriptor);
bool parse_descriptor(ConstBytes body, Descriptor& descriptor);

}  // namespace mcast::wire
