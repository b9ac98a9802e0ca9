// Frames and datagrams on their way out: header, checksum, counters; whether a payload is copied
// behind its header or stays where it is.
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

// A gathered payload is read by the device when the operation may be over and its memory the
// caller's again: only a repetition can still be queued then, since an operation whose memory is
// gathered (a large one) ends when everybody has everything. If the caller writes to the memory
// meanwhile, receivers drop the repetition: its operation is over, or its checksum is wrong. What
// is small is sent from the copy kept for repairs, which ends with the operation and is copied
// cheaply.
bool GroupCore::send_datagram(wire::DatagramType type, Sequence sequence, uint32_t descriptor,
                              Chunk chunk, ConstBytes payload, bool last, bool in_order,
                              const Slice* block) {
  const Bytes slot = port_.lend(wire::kDatagramHeader + payload.size());
  if (slot.empty()) {
    counters_.add(Counter::would_block);
    return false;
  }
  const wire::DatagramHeader header{type,     params_.lane, last,  in_order, params_.tag,
                                    sequence, descriptor,   chunk, self_,    0};
  const size_t size = wire::kDatagramHeader + payload.size();
  if (block != nullptr) {
    wire::seal_datagram(slot, header, payload);
    const auto offset = static_cast<size_t>(payload.data() - block->data());
    if (port_.commit_gather(wire::kDatagramHeader, *block, offset, payload.size())) {
      counters_.add(Counter::gathered_datagrams);
    } else {
      wire::copy_payload(slot, payload);  // sealed already
      port_.commit(size);
    }
  } else {
    wire::write_datagram(slot, header, payload);
    port_.commit(size);
  }
  counters_.add(Counter::datagrams_sent);
  counters_.add(Counter::datagram_bytes_sent, size);
  return true;
}

}  // namespace mcast
