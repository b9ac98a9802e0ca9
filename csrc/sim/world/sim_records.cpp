// Five bytes in front of a connection's bytes: its number, and whether it closes the connection.
#include "sim/world/sim_records.h"

#include <array>
#include <cstring>

namespace mcast::sim {

void send_record_frame(SimTransport& from, PeerId to, const RecordFrame& frame) {
  std::array<std::byte, 5> head;
  std::memcpy(head.data(), &frame.connection, 4);
  head[4] = static_cast<std::byte>(frame.end);
  const ConstBytes parts[] = {head, std::as_bytes(std::span(frame.bytes))};
  static_cast<Transport&>(from).stream().send(to, Channel::kControl, parts);
}

RecordFrame read_record_frame(ConstBytes frame) {
  RecordFrame out;
  std::memcpy(&out.connection, frame.data(), 4);
  out.end = frame[4] != std::byte{0};
  out.bytes = {reinterpret_cast<const char*>(frame.data()) + 5, frame.size() - 5};
  return out;
}

}  // namespace mcast::sim
