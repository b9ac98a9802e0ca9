// Request: one call of a collective operation, as its caller describes it, and what each kind
// needs. Callers of a group, device tensors, clients of an engine and the engine itself use it.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/element.h"
#include "base/lane_id.h"
#include "base/region.h"
#include "wire/descriptor.h"

namespace mcast {

// How contributions are combined. base/reduce_kernels.h has the numerics contract: a fixed order;
// 16-bit floats accumulate in float32 and are rounded once.
struct Reducing {
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  double factor = 1;  // PREMUL_SUM: factor of this rank's contribution
};

// The name of a public operation, for messages. Longer names are cut.
class OpName {
 public:
  static constexpr size_t kMost = 39;  // characters

  OpName() = default;
  OpName(std::string_view name) {  // NOLINT: converts
    name.copy(text_.data(), kMost);
  }
  OpName(const char* name) : OpName(std::string_view(name)) {}         // NOLINT: converts
  OpName(const std::string& name) : OpName(std::string_view(name)) {}  // NOLINT: converts

  std::string or_else(const char* otherwise) const {
    return text_[0] == 0 ? otherwise : text_.data();
  }
  const char* c_str() const { return text_.data(); }

 private:
  std::array<char, kMost + 1> text_{};
};

// The arguments of a call. Each kind uses some of them; Group's builders (runtime/group.h) say
// which.
struct Request {
  wire::Kind kind = wire::Kind::kBarrier;
  std::vector<Slice> inputs, outputs;
  Member root = kNoMember;
  Reducing how = {};
};

// The lane that carries operations of a kind. A barrier goes to the other one, too.
constexpr LaneId lane_of(wire::Kind kind) noexcept {
  return wire::is_reduction(kind) || wire::is_exchange(kind) ? LaneId::kReduce : LaneId::kMulticast;
}

// Number of inputs and outputs of a request. A slice of an exchange may be empty.
struct RequestShape {
  size_t inputs = 0, outputs = 0;
};
constexpr RequestShape shape_of(wire::Kind kind, size_t ranks, bool is_root) noexcept {
  switch (kind) {
    case wire::Kind::kBroadcast:  // the data is an input on the root, an output elsewhere
      return is_root ? RequestShape{1, 0} : RequestShape{0, 1};
    case wire::Kind::kAllgather:
      return {1, ranks};
    case wire::Kind::kReduceScatter:
      return {ranks, 1};
    case wire::Kind::kAllreduce:
      return {1, 1};
    case wire::Kind::kReduce:
      return {1, is_root ? size_t{1} : size_t{0}};
    case wire::Kind::kAllToAll:
    case wire::Kind::kGather:
    case wire::Kind::kScatter:
      return {ranks, ranks};
    case wire::Kind::kBarrier:
      break;
  }
  return {};
}

}  // namespace mcast
