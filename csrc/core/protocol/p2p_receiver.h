// Messages from one other rank to this one: how much of each is here, how much its sender may be
// told to send, what it is told of its accounts (p2p_sender.h). Messages begin in order; each is
// granted from the moment when a receive takes it, and its bytes come in order. Pure.
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
    kComplete,  // with this all of the message is here, and a receive has it
    kBroken,    // out of order, beyond its end, what was granted, or what may be sent unasked
  };
  // A message of `total` bytes begins, with its first `bytes` of them.
  Verdict on_head(uint32_t number, uint64_t total, uint64_t bytes);
  // A receive has taken it: kTaken or kComplete.
  Verdict take(uint32_t number);
  Verdict on_data(uint32_t number, uint64_t offset, uint64_t bytes);

  struct Grant {
    uint32_t number = 0;
    uint64_t end = 0;
  };
  // The next grant of at most `room` bytes (1 or more), which counts from now on; nothing: all is
  // granted, or what was must come first.
  std::optional<Grant> grant(uint64_t room);
  // Whether something is not granted yet of what receives have taken.
  bool asking() const { return !asking_.empty(); }
  // Bytes that were granted and are not here.
  uint64_t outstanding() const { return outstanding_; }

  struct Credit {
    uint64_t heads = 0, bytes = 0;  // taken by receives since the beginning
  };
  // What the sender is to be told now; nothing: it has more than half of both accounts.
  std::optional<Credit> credit();

  // Messages of which something is missing although a receive has taken them.
  size_t incomplete() const { return incomplete_; }

 private:
  struct In {
    uint64_t total = 0, here = 0, granted = 0;
    bool taken = false;
  };

  const P2pParams params_;
  std::unordered_map<uint32_t, In> in_;  // not complete, or not taken
  std::deque<uint32_t> asking_;          // taken and not all granted, in the order of the takes
  size_t incomplete_ = 0;
  uint32_t next_;
  uint64_t outstanding_ = 0;
  Credit come_, taken_, told_;
};

}  // namespace mcast
