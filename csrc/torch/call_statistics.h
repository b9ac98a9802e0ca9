// Counts the calls of each operation that the engine and the fallbacks served. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/lane_id.h"

namespace mcast::pg {

// Names as users know them from torch.distributed.
// clang-format off
#define MCAST_OPS(X)                                                                             \
  X(broadcast) X(all_gather) X(all_gather_into_tensor) X(all_gather_into_tensor_coalesced)       \
  X(all_gather_coalesced) X(barrier) X(all_reduce) X(all_reduce_coalesced) X(all_reduce_sparse)  \
  X(reduce) X(reduce_scatter) X(reduce_scatter_tensor) X(reduce_scatter_tensor_coalesced)        \
  X(gather) X(scatter) X(all_to_all) X(all_to_all_single) X(send) X(recv) X(recv_any_source)     \
  X(monitored_barrier)
// clang-format on

enum class Op : uint8_t {
#define MCAST_OP_ENUM(name) name,
  MCAST_OPS(MCAST_OP_ENUM)
#undef MCAST_OP_ENUM
      kCount
};
inline constexpr size_t kOpCount = static_cast<size_t>(Op::kCount);
inline constexpr const char* kOpNames[] = {
#define MCAST_OP_NAME(name) #name,
    MCAST_OPS(MCAST_OP_NAME)
#undef MCAST_OP_NAME
};
constexpr const char* op_name(Op op) { return kOpNames[static_cast<size_t>(op)]; }

// The lane that an operation of the engine goes to. (Lists of different sizes are broadcasts and
// reduces, on these lanes too.)
constexpr LaneId lane_of(Op op) {
  switch (op) {
    case Op::all_reduce:
    case Op::all_reduce_coalesced:
    case Op::reduce:
    case Op::reduce_scatter:
    case Op::reduce_scatter_tensor:
    case Op::reduce_scatter_tensor_coalesced:
    case Op::gather:
    case Op::scatter:
    case Op::all_to_all:
    case Op::all_to_all_single:
    case Op::send:
    case Op::recv:
    case Op::recv_any_source:
      return LaneId::kReduce;
    default:
      return LaneId::kMulticast;
  }
}

// Calls made by some ranks only: they take no sequence number.
constexpr bool point_to_point(Op op) {
  return op == Op::send || op == Op::recv || op == Op::recv_any_source;
}

struct CallCounts {
  std::atomic<uint64_t> engine{0};
  std::atomic<uint64_t> fallback{0};
  std::atomic<uint64_t> bytes{0};  // output bytes served by the engine
};

class CallStatistics {
 public:
  void engine(Op op, uint64_t bytes) {
    at(op).engine.fetch_add(1, std::memory_order_relaxed);
    at(op).bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  void fallback(Op op) { at(op).fallback.fetch_add(1, std::memory_order_relaxed); }
  const CallCounts& get(Op op) const { return counts_[static_cast<size_t>(op)]; }

 private:
  CallCounts& at(Op op) { return counts_[static_cast<size_t>(op)]; }
  std::array<CallCounts, kOpCount> counts_;
};

}  // namespace mcast::pg
