// The control block as seen by one rank on one lane: the rounds that the others have published and
// consumed, and the slots. Has no state of its own; any thread.
#pragma once

#include <algorithm>

#include "shm/control_block.h"

namespace mcast {

class LaneView {
 public:
  LaneView(ControlBlock block, size_t lane, Member self)
      : block_(block), lane_(lane), self_(self) {}

  Member self() const { return self_; }
  uint32_t size() const { return block_.members(); }
  FailureRecord& failure() const { return block_.failure(); }
  RankState& state(Member m) const { return block_.state(lane_, m); }
  RankState& mine() const { return state(self_); }
  const ControlBlock& block() const { return block_; }
  MessageBoard& board(Member m) const { return block_.board(m); }

  bool published(Member m, uint64_t round) const {
    return state(m).published.load(std::memory_order_seq_cst) > round;
  }
  bool all_published(uint64_t round) const {
    for (uint32_t m = 0; m < size(); m++) {
      if (!published(static_cast<Member>(m), round)) return false;
    }
    return true;
  }
  // Rounds that every rank has consumed: their slots are free.
  uint64_t least_consumed() const {
    uint64_t least = UINT64_MAX;
    for (uint32_t m = 0; m < size(); m++) {
      const RankState& rank = state(static_cast<Member>(m));
      least = std::min(least, rank.consumed.load(std::memory_order_seq_cst));
    }
    return least;
  }

  // Headers of other ranks: only of rounds that they have published.
  SlotHeader& header(Member m, uint64_t round) const { return block_.header(lane_, m, round); }
  std::byte* data(Member m, uint64_t round) const { return block_.data(lane_, m, round); }

 private:
  const ControlBlock block_;
  const size_t lane_;
  const Member self_;
};

}  // namespace mcast
