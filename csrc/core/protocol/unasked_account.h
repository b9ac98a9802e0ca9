// Limits what a contributor may send to an owner before the owner grants it: an account per owner.
// Both sides charge a frame alike, including its overhead, so a sender that stays within its
// account cannot overflow the owner's store (early_frames.h), however small its frames are. Pure.
#pragma once

#include <vector>

#include "base/coverage.h"
#include "base/types.h"

namespace mcast {

// Bytes that a frame with this body is charged: the constant covers its header, its buffer and its
// entries in the store.
constexpr size_t early_cost(size_t body) { return body + 128; }

// Unasked contributions of operations that are not released, by owner.
class UnaskedAccount {
 public:
  // Limit per owner, in bytes. Only the oldest of all unreleased operations may exceed it: those
  // behind it refund nothing before it is over, so it must not wait for them.
  static constexpr size_t kMost = 64u << 10;

  explicit UnaskedAccount(uint32_t members) : charged_(members), waiting_(members, kNobody) {}

  // Returns true if the contribution of operation `sequence` may be sent. Once it may not, later
  // ones may not either, until it has been sent: small ones would use up all refunds that a larger
  // one needs.
  bool room(Member owner, Sequence sequence, size_t cost, bool oldest) {
    if (oldest) return true;
    if (waiting_[owner] < sequence) return false;
    if (charged_[owner] + cost <= kMost) return true;
    MCAST_COVER(unasked_account_full);
    waiting_[owner] = sequence;
    return false;
  }
  void charge(Member owner, Sequence sequence, size_t cost) {
    filling_ += charged_[owner] <= kMost / 2 && charged_[owner] + cost > kMost / 2 ? 1 : 0;
    charged_[owner] += cost;
    if (waiting_[owner] == sequence) waiting_[owner] = kNobody;
  }
  // The operation is released.
  void give_back(Member owner, size_t cost) {
    filling_ -= charged_[owner] > kMost / 2 && charged_[owner] - cost <= kMost / 2 ? 1 : 0;
    charged_[owner] -= cost;
  }
  size_t charged(Member owner) const { return charged_[owner]; }
  // Returns true if half of an owner's account is charged: the next contribution may have to wait
  // for a release.
  bool filling() const { return filling_ > 0; }

 private:
  static constexpr Sequence kNobody = UINT32_MAX;
  std::vector<size_t> charged_;
  uint32_t filling_ = 0;           // owners of which more than half is charged
  std::vector<Sequence> waiting_;  // the first operation that found no room
};

}  // namespace mcast
