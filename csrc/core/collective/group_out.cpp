// Frames and datagrams on their way out: header, checksum, counters.
#include <array>

#include "collective/group_core.h"

namespace mcast {

void GroupCore::send_frame(Member to, Channel channel, wire::FrameType type, Sequence sequence,
                           uint32_t argument, ConstBytes body, ConstBytes payload) {
  if (to == self_ || !gone_[to].ok()) return;
  std::array<std::byte, wire::kFrameHeader> head;
  const wire::FrameHeader header{type, params_.lane, self_, params_.tag, sequence, argument};
  const std::array<ConstBytes, 2> parts{body, payload};
  wire::write_frame_header(head.data(), header, parts);
  const std::array<ConstBytes, 3> all{ConstBytes(head), body, payload};
  counters_.add(Counter::frames_sent);
  counters_.add(Counter::frame_bytes_sent, head.size() + body.size() + payload.size());
  port_.send(to, channel, all);
}

void GroupCore::flood(wire::FrameType type, Sequence sequence, uint32_t argument, ConstBytes body,
                      Member except) {
  if (!tree_.is_top(self_) && tree_.parent(self_) != except) {
    send_frame(tree_.parent(self_), Channel::kControl, type, sequence, argument, body);
  }
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    const auto child = static_cast<Member>(tree_.first_child(self_) + c);
    if (child != except) send_frame(child, Channel::kControl, type, sequence, argument, body);
  }
}

bool GroupCore::send_datagram(wire::DatagramType type, Sequence sequence, uint32_t descriptor,
                              Chunk chunk, ConstBytes payload, bool last) {
  const Bytes slot = port_.lend(wire::kDatagramHeader + payload.size());
  if (slot.empty()) {
    counters_.add(Counter::would_block);
    return false;
  }
  const size_t size = wire::write_datagram(
      slot, {type, params_.lane, last, params_.tag, sequence, descriptor, chunk, self_, 0},
      payload);
  port_.commit(size);
  counters_.add(Counter::datagrams_sent);
  counters_.add(Counter::datagram_bytes_sent, size);
  return true;
}

}  // namespace mcast
