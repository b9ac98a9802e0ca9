// Simulates a kernel that refuses to send: sendmsg() and sendmmsg() of this program, in the process
// that requests it. The rest of the core runs unchanged over real sockets.
#pragma once

#include <cstdint>

namespace mcast::test {

struct Refusal {
  int error = 0;         // errno; 0: nothing is refused
  bool streams = false;  // sends on connections; false: datagrams
  uint64_t after = 0;    // calls that are let through first
  uint64_t run = 1;      // calls refused in a row ...
  uint64_t of = 1;       // ... out of this many
};

// Takes effect for all threads from now on.
void refuse_sends(const Refusal& refusal);
// Calls refused so far.
uint64_t refused_sends();

}  // namespace mcast::test
