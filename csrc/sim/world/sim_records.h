// Record connections between simulated processes: frames on the streams of two endpoints, each with
// the number of its connection, so that two processes may have several. Frames carry the same text
// as real sockets and compete for the same links as all other traffic. Threads: one.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/network/sim_transport.h"

namespace mcast::sim {

struct RecordFrame {
  uint32_t connection = 0;
  bool end = false;  // the connection is closed; nothing follows
  std::string_view bytes;
};

void send_record_frame(SimTransport& from, PeerId to, const RecordFrame& frame);
// The result refers to the bytes of `frame`.
RecordFrame read_record_frame(ConstBytes frame);

}  // namespace mcast::sim
