// Options of streams over a fabric: the parts of TCP that decide how fast and in which pieces bytes
// arrive.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace mcast::sim {

struct FlowOptions {
  size_t segment = 1448;          // payload of a packet, bytes
  uint16_t overhead = 90;         // wire bytes besides the payload: IPv4, TCP, Ethernet, gap
  uint16_t ack = 90;              // wire bytes of an acknowledgement
  unsigned ack_every = 2;         // packets per acknowledgement; more with GRO
  bool cork = false;              // a partial segment waits behind another one at the interface
  size_t window = 4 << 20;        // maximum bytes in flight, as the receiver's buffer allows
  size_t first_window = 10;       // segments
  size_t low_water = 64 * 1024;   // bytes that the medium takes beyond the window (NOTSENT_LOWAT)
  size_t interface = 128 * 1024;  // maximum bytes of one stream that wait at the interface
  unsigned train = 64;            // maximum number of packets that move together
  Nanos timeout = 200 * kMilli;   // until everything is sent again; doubled each time
  Nanos loopback = 10 * kMicro;   // between endpoints of one host
};

}  // namespace mcast::sim
