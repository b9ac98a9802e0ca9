// The streams beside the caller's on which device tensors are copied to and from the host.
//
// Threads: any. Errors: those of the device, as exceptions.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>

#include "device/gate.h"

namespace mcast::pg {

// A pair of the process, and how a group uses it.
struct SideStreams {
  c10::Stream out;
  c10::Stream in;
  bool reduces;      // the lane
  const Gate* gate;  // null: none
  size_t piece;      // bytes of a piece, at least; a multiple of `unit`
  size_t unit;

  // Those of one lane on one device. `gate` may be null. `chunk`: of the network, bytes; a piece
  // that ends with one need not wait for the next piece to leave. 0: any.
  static SideStreams make(c10::Device device, bool reduces, const Gate* gate, size_t piece,
                          size_t chunk);
  // Those of messages that are posted on this stream of the caller's.
  static SideStreams of_messages(const c10::Stream& caller, const Gate* gate, size_t piece);
};

}  // namespace mcast::pg
