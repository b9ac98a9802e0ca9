// Connections for records between simulated processes: frames on the streams of two endpoints, each
// with the number of its connection, so that two processes may have several. What passes is the
// text that sockets would carry, and it takes the same links as everything else. Threads: one.
#pragma once

#include <cstdint>
#include <string_view>

#include "transport/sim/sim_transport.h"

namespace mcast::sim {

struct RecordFrame {
  uint32_t connection = 0;
  bool end = false;  // no more comes: the connection is closed
  std::string_view bytes;
};

void send_record_frame(SimTransport& from, PeerId to, const RecordFrame& frame);
// The frame's bytes are `frame`'s.
RecordFrame read_record_frame(ConstBytes frame);

}  // namespace mcast::sim
