// Small limits for the state machines of messages, so that a few bytes reach each limit.
#pragma once

#include "protocol/p2p_sender.h"

namespace mcast::test {

inline P2pParams p2p_params() {
  P2pParams p;
  p.unasked = 10;
  p.account = 20;
  p.heads = 8;
  p.piece = 30;
  p.window = 60;
  return p;
}

inline uint64_t all_readable(uint64_t) { return UINT64_MAX; }

}  // namespace mcast::test
