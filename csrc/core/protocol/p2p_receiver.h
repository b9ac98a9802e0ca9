// Messages from one other rank to this one: how much of each has arrived, how much its sender may
// be granted, and the credit for its accounts (p2p_sender.h). Messages begin in order; each is
// granted once a receive has taken it, and its bytes arrive in order. Pure.
#pragma once

#include <deque>
#include <optional>
#include <unordered_map>

#include "base/types.h"
#include "protocol/p2p_sender.h"

namespace mcast {

class P2pReceiver {
 public:
  explicit P2pReceiver(const P2pParams& params) : params_(params), next_(params.first) {}

  enum class Verdict {
    kTaken,
    kComplete,  // all of the message has now arrived, and a receive has taken it
    kBroken,    // out of order, beyond its end, the granted bytes, or the unasked limit
  };
  // A message of `total` bytes begins; its first `bytes` have arrived.
  Verdict on_head(uint32_t number, uint64_t total, uint64_t bytes);
  // A receive has taken it. Returns kTaken or kComplete.
  Verdict take(uint32_t number);
  Verdict on_data(uint32_t number, uint64_t offset, uint64_t bytes);

  struct Grant {
    uint32_t number = 0;
    uint64_t end = 0;
  };
  // The next grant, of at most `room` bytes (1 or more), which is counted from now on; nothing: all
  // is granted, or granted bytes must arrive first.
  std::optional<Grant> grant(uint64_t room);
  // Returns true if messages that receives have taken are not fully granted.
  bool asking() const { return !asking_.empty(); }
  // Bytes that were granted and have not arrived.
  uint64_t outstanding() const { return outstanding_; }

  struct Credit {
    uint64_t heads = 0, bytes = 0;  // totals taken by receives
  };
  // The credit to send now; nothing: the sender has more than half of both accounts.
  std::optional<Credit> credit();

  // Number of messages that a receive has taken and that have not fully arrived.
  size_t incomplete() const { return incomplete_; }

 private:
  struct In {
    uint64_t total = 0, here = 0, granted = 0;
    bool taken = false;
  };

  const P2pParams params_;
  std::unordered_map<uint32_t, In> in_;  // incomplete, or not taken
  std::deque<uint32_t> asking_;          // taken and not fully granted, in the order of the takes
  size_t incomplete_ = 0;
  uint32_t next_;
  uint64_t outstanding_ = 0;
  Credit come_, taken_, told_;
};

}  // namespace mcast
