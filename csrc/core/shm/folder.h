// Folds the contributions of the ranks of one host, in the order of the group, from slots or from
// the peers' memory. 16-bit floats accumulate in float32 (base/reduce_kernels.h).
#pragma once

#include <optional>
#include <vector>

#include "base/counters.h"
#include "base/fold_order.h"
#include "shm/lane_view.h"
#include "shm/operation.h"
#include "shm/port.h"

namespace mcast {

// One per lane; used by the thread that drives the lane.
class Folder {
 public:
  // `port` and `counters` outlive this.
  Folder(const LaneView& lane, FoldOrder order, HostPort& port, Counters& counters)
      : lane_(lane), order_(order), port_(port), counters_(counters) {}

  // Folds `length` bytes of everybody's input, which the slots of `round` contain from `in_slot`
  // on. `offset`: in the input (reduce_scatter: in its block for this rank).
  void fold_slots(const HostOperation& op, uint64_t round, size_t in_slot, size_t offset,
                  size_t length, std::byte* out);
  // Notes the places of everybody's input, from the slots of the first round.
  void learn_sources(HostOperation& op) const;
  // Folds the part at `offset` of everybody's input; learn_sources() was called. Returns false on
  // failure: see unreadable().
  bool fold_direct(const HostOperation& op, size_t offset, size_t length, std::byte* out);

  // Copies `length` bytes at `place` of `from` into a result of `whole` bytes: from this process's
  // mapping of them, or else through the kernel. Returns false on failure: see unreadable(). The
  // caller must call streaming_fence() afterwards.
  bool pull(Member from, uint64_t place, std::byte* to, size_t length, size_t whole);

  // The rank whose memory could not be read, and the reason.
  struct Unreadable {
    Member member;
    Status why;
  };
  const std::optional<Unreadable>& unreadable() const { return unreadable_; }

 private:
  FoldLayout layout(const HostOperation& op) const;
  void fold_slots_from(uint32_t first, const ReduceArgs& how, uint64_t round, size_t in_slot,
                       size_t length, std::byte* out);
  bool fold_direct_from(uint32_t first, const HostOperation& op, size_t offset, size_t length,
                        std::byte* out);
  bool fetch(Member from, uint64_t place, std::byte* to, size_t length);
  const std::byte* mapped(Member from, uint64_t place, size_t length);

  const LaneView lane_;
  const FoldOrder order_;
  HostPort& port_;
  Counters& counters_;
  std::optional<Unreadable> unreadable_;
  std::vector<std::byte> tile_, accumulator_;
};

}  // namespace mcast
