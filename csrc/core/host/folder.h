// Folding what the ranks of one host contribute, in rank order: out of slots, or out of the memory
// of the peers. 16-bit floats accumulate in float32 (base/reduce_kernels.h).
#pragma once

#include <optional>
#include <vector>

#include "base/counters.h"
#include "host/lane_view.h"
#include "host/operation.h"
#include "host/port.h"

namespace mcast {

// One of a lane; whoever drives the lane.
class Folder {
 public:
  // `port` and `counters` outlive this.
  Folder(const LaneView& lane, HostPort& port, Counters& counters)
      : lane_(lane), port_(port), counters_(counters) {}

  // Folds `length` bytes at `offset` of what every slot of `round` holds.
  void fold_slots(const ReduceArgs& how, uint64_t round, size_t offset, size_t length,
                  std::byte* out);
  // Notes where everybody's input is: the slots of the first round say it.
  void learn_sources(HostOperation& op) const;
  // Folds the part at `offset` of everybody's input; sources are known. False: unreadable().
  bool fold_direct(const HostOperation& op, size_t offset, size_t length, std::byte* out);

  // Whose memory could not be read, and why.
  struct Unreadable {
    Member member;
    Status why;
  };
  const std::optional<Unreadable>& unreadable() const { return unreadable_; }

 private:
  bool fetch(Member from, uint64_t address, std::byte* to, size_t length);

  const LaneView lane_;
  HostPort& port_;
  Counters& counters_;
  std::optional<Unreadable> unreadable_;
  std::vector<std::byte> tile_, accumulator_;
};

}  // namespace mcast
