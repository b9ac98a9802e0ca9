// The streams on which device tensors are copied to and from the host, beside the caller's stream.
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
  bool reduces;      // the lane: reductions or gathers
  const Gate* gate;  // null if there is none
  size_t piece;      // minimum bytes of a piece; a multiple of `unit`
  size_t unit;

  // Returns the streams of one lane on one device. `gate` may be null. `chunk`: of the network,
  // bytes; a piece that ends at a chunk's end need not wait for the next piece before it is sent.
  // 0: any.
  static SideStreams make(c10::Device device, bool reduces, const Gate* gate, size_t piece,
                          size_t chunk);
  // Returns the streams for messages that are posted on this stream of the caller.
  static SideStreams of_messages(const c10::Stream& caller, const Gate* gate, size_t piece);
};

}  // namespace mcast::pg
