// Counts the calls of each operation that the engine and the fallbacks served. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/lane_id.h"
#include "collective/request.h"

namespace mcast::pg {

// Names as users know them from torch.distributed, and the kind of the engine's operation.
// (Messages have none.)
// clang-format off
#define MCAST_OPS(X)                                                                          \
  X(broadcast, kBroadcast) X(all_gather, kAllgather) X(all_gather_into_tensor, kAllgather)    \
  X(all_gather_into_tensor_coalesced, kAllgather) X(all_gather_coalesced, kAllgather)         \
  X(barrier, kBarrier) X(all_reduce, kAllreduce) X(all_reduce_coalesced, kAllreduce)          \
  X(all_reduce_sparse, kAllgather) X(reduce, kReduce) X(reduce_scatter, kReduceScatter)       \
  X(reduce_scatter_tensor, kReduceScatter) X(reduce_scatter_tensor_coalesced, kReduceScatter) \
  X(gather, kGather) X(scatter, kScatter) X(all_to_all, kAllToAll)                            \
  X(all_to_all_single, kAllToAll) X(send, kBarrier) X(recv, kBarrier)                         \
  X(recv_any_source, kBarrier) X(monitored_barrier, kBarrier)
// clang-format on

enum class Op : uint8_t {
#define MCAST_OP_ENUM(name, kind) name,
  MCAST_OPS(MCAST_OP_ENUM)
#undef MCAST_OP_ENUM
      kCount
};
inline constexpr size_t kOpCount = static_cast<size_t>(Op::kCount);
inline constexpr const char* kOpNames[] = {
#define MCAST_OP_NAME(name, kind) #name,
    MCAST_OPS(MCAST_OP_NAME)
#undef MCAST_OP_NAME
};
constexpr const char* op_name(Op op) { return kOpNames[static_cast<size_t>(op)]; }

// Calls made by some ranks only: they take no sequence number.
constexpr bool point_to_point(Op op) {
  return op == Op::send || op == Op::recv || op == Op::recv_any_source;
}

// The lane that an operation of the engine goes to. (Lists of different sizes are broadcasts and
// reduces, on these lanes too.)
inline constexpr wire::Kind kOpKinds[] = {
#define MCAST_OP_KIND(name, kind) wire::Kind::kind,
    MCAST_OPS(MCAST_OP_KIND)
#undef MCAST_OP_KIND
};
constexpr LaneId lane_of(Op op) {
  return point_to_point(op) ? LaneId::kReduce : mcast::lane_of(kOpKinds[static_cast<size_t>(op)]);
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
