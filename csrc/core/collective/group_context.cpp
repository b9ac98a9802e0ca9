// Sending of frames and datagrams: header, checksum, counters, and whether a payload is copied
// behind its header or gathered. If descriptors differ, each side is informed of the other's call.
#include "collective/group_context.h"

#include <array>

#include "base/coverage.h"
#include "collective/error_text.h"
#include "crypto/datagram_guard.h"

namespace mcast {
namespace {

constexpr size_t kPeerBacklog = 256u << 10;  // bytes of messages waiting for one rank's connection

// The racks of the hosts, expressed as racks of the ranks on them.
Racks racks_of_members(const GroupParams& params) {
  if (params.agreed.racks.flat() || params.host_of.empty()) return params.agreed.racks;
  const Hosts hosts(params.host_of);
  std::vector<std::string> names;
  for (uint32_t m = 0; m < hosts.members(); m++) {
    names.push_back(std::to_string(params.agreed.racks.rack_of(hosts.host_of(m))));
  }
  return Racks(names);
}

}  // namespace

GroupContext::GroupContext(GroupParams p, Port& out, Counters& count)
    : params(std::move(p)),
      port(out),
      counters(count),
      self(params.self),
      size(params.agreed.members),
      tree(size, params.arity),
      gone(size),
      reductions{params.host_of.empty() ? Hosts(size) : Hosts(params.host_of),
                 self,
                 params.read_host,
                 counters,
                 params.tag,
                 params.agreed.fold,
                 params.agreed.racks,
                 racks_of_members(params),
                 {},
                 {}},
      ops(params.first_sequence) {
  if (size == 1) {
    path.first = Path::kLocal;
    path.reason = "one rank";
    state = GroupState::kOpen;
  }
}

void GroupContext::send_frame(Member to, Channel channel, wire::FrameType type, Sequence sequence,
                              uint32_t argument, ConstBytes body, ConstBytes payload) {
  if (!reachable(to)) return;
  std::array<std::byte, wire::kFrameHeader> head;
  const wire::FrameHeader header{type, params.lane, self, params.tag, sequence, argument};
  const std::array<ConstBytes, 2> parts{body, payload};
  wire::write_frame_header(head.data(), header, parts);
  const std::array<ConstBytes, 3> all{ConstBytes(head), body, payload};
  counters.add(Counter::frames_sent);
  counters.add(Counter::frame_bytes_sent, head.size() + body.size() + payload.size());
  port.send(to, channel, all);
}

MessageLink::Facts GroupContext::message_facts() const {
  return {params.name, self, size, kMaxSegment, params.agreed.incast, params.liveness_limit};
}

void GroupContext::send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                                ConstBytes body, ConstBytes payload) {
  send_frame(to, Channel::kReduce, type, number, argument, body, payload);
}

bool GroupContext::takes(Member to, size_t) {
  if (port.queued(to, Channel::kReduce) < kPeerBacklog) return true;
  MCAST_COVER(message_queue_full);
  return false;
}

bool GroupContext::ask(Member member) {
  if (!reachable(member)) return false;
  counters.add(Counter::pings_sent);
  send_frame(member, Channel::kControl, wire::FrameType::kPing, ops.base(), 0);
  return true;
}

bool GroupContext::reachable(Member member) const {
  if (member == self) return false;
  if (!is_station(member)) return gone[member].ok();
  return fold != nullptr && fold->reachable(member);
}

void GroupContext::flood(wire::FrameType type, Sequence sequence, uint32_t argument,
                         ConstBytes body, Member except) {
  if (!tree.is_top(self) && tree.parent(self) != except) {
    send_frame(tree.parent(self), Channel::kControl, type, sequence, argument, body);
  }
  for (uint32_t c = 0; c < tree.children(self); c++) {
    const auto child = static_cast<Member>(tree.first_child(self) + c);
    if (child != except) send_frame(child, Channel::kControl, type, sequence, argument, body);
  }
}

// The device may read a gathered payload after the operation has ended and its memory belongs to
// the caller again. Only a retransmission can still be queued then, because an operation whose
// memory is gathered (a large one) ends when all members have all data. If the caller writes to the
// memory meanwhile, receivers drop the retransmission: its operation is over, or its checksum is
// wrong. Small operations are sent from the copy kept for repairs: it is freed with the operation,
// and copying is cheap.
bool GroupContext::send_datagram(wire::DatagramType type, Sequence sequence, uint32_t descriptor,
                                 Chunk chunk, ConstBytes payload, bool last, bool in_order,
                                 const Slice* block) {
  if (params.multicast.guard != nullptr) {
    return send_guarded(
        {type, params.lane, last, in_order, params.tag, sequence, descriptor, chunk, self, 0},
        payload);
  }
  const Bytes out = port.lend(wire::kDatagramHeader + payload.size());
  if (out.empty()) {
    counters.add(Counter::would_block);
    return false;
  }
  const wire::DatagramHeader header{type,     params.lane, last,  in_order, params.tag,
                                    sequence, descriptor,  chunk, self,     0};
  const size_t bytes = wire::kDatagramHeader + payload.size();
  if (block != nullptr) {
    wire::seal_datagram(out, header, payload);
    const auto offset = static_cast<size_t>(payload.data() - block->data());
    if (port.commit_gather(wire::kDatagramHeader, *block, offset, payload.size())) {
      counters.add(Counter::gathered_datagrams);
    } else {
      wire::copy_payload(out, payload);  // already encrypted
      port.commit(bytes);
    }
  } else {
    wire::write_datagram(out, header, payload);
    port.commit(bytes);
  }
  counters.add(Counter::datagrams_sent);
  counters.add(Counter::datagram_bytes_sent, bytes);
  return true;
}

bool GroupContext::agrees(Member peer, Sequence sequence, uint32_t descriptor) {
  if (descriptor == ops.entry(sequence)->hash) return true;
  counters.add(Counter::mismatched);
  describe_to(peer, sequence);
  return false;
}

void GroupContext::describe_to(Member to, Sequence sequence) {
  const OperationQueue::Entry* const entry = ops.entry(sequence);
  if (entry == nullptr || to == self) return;
  wire::Writer body;
  wire::put_descriptor(body, entry->descriptor());
  send_frame(to, Channel::kControl, wire::FrameType::kDescribe, sequence, 0, body.bytes());
}

void GroupContext::broke(const Frame& header, const char* what) {
  counters.add(Counter::malformed);
  fail(Status(Code::kInternal, "rank " + std::to_string(header.member) +
                                   " broke the protocol of operation " +
                                   std::to_string(header.sequence) + ": " + what),
       header.member);
}

bool GroupContext::early_allowed(const Frame& header) {
  const Sequence ahead = header.sequence - ops.next();
  if (ahead < kFurthestAhead) return true;
  fail(Status(Code::kInternal, "rank " + std::to_string(header.member) + " is " +
                                   std::to_string(ahead) + " operations ahead of rank " +
                                   std::to_string(self)),
       header.member);
  return false;
}

void GroupContext::mismatch(Sequence sequence, Member other, const std::string& theirs) {
  const OperationQueue::Entry* const entry = ops.entry(sequence);
  const std::string ours = entry != nullptr ? entry->descriptor().to_string() : "?";
  fail(differs(sequence, self, ours, other, theirs), other);
}

void GroupContext::fail(const Status& why, Member culprit) {
  if (failed() || why.ok()) return;
  state = GroupState::kFailed;
  failure_.why = why;
  failure_.culprit = culprit;
  failure_.is_news = true;
}

void GroupContext::fail_later(const Status& why, Nanos when) {
  if (failed() || when >= failure_.suspected_at) return;
  failure_.suspected = why;
  failure_.suspected_at = when;
}

void GroupContext::drive_suspicion(Nanos now) {
  if (now < failure_.suspected_at) return;
  if (!failed() && !failure_.suspected.ok()) MCAST_COVER(other_lane_fails);
  fail(Status(failure_.suspected), kNoMember);
}

const std::vector<Sequence>& GroupContext::take_maybe_complete() {
  maybe_complete_.taken.clear();
  maybe_complete_.taken.swap(maybe_complete_.noted);
  return maybe_complete_.taken;
}

void GroupContext::send_to_children(wire::FrameType type, Sequence sequence, uint32_t argument,
                                    ConstBytes body) {
  for (uint32_t c = 0; c < tree.children(self); c++) {
    send_frame(static_cast<Member>(first_child() + c), Channel::kControl, type, sequence, argument,
               body);
  }
}

// Every call takes a new packet number, even for a chunk that was sent before. A full medium
// refuses the datagram before that.
bool GroupContext::send_guarded(const wire::DatagramHeader& header, ConstBytes payload) {
  const Bytes out = port.lend(wire::kGuardedHeader + payload.size() + wire::kDatagramTag);
  if (out.empty()) {
    counters.add(Counter::would_block);
    return false;
  }
  crypto::SealKey& key = params.multicast.guard->seal_key();
  const size_t bytes = key.seal(out, header, payload);
  if (bytes == 0) {
    fail(Status(key.failure()), self);
    return false;
  }
  port.commit(bytes);
  counters.add(Counter::datagrams_sent);
  counters.add(Counter::datagram_bytes_sent, bytes);
  return true;
}

bool GroupContext::send_chunk(const Operation& op, Chunk chunk) {
  if (!port.has_share()) return false;
  const size_t offset = static_cast<size_t>(chunk) * op.plan.chunk;
  const size_t length = op.plan.length(chunk);
  const bool gather = !op.plan.small && op.plan.block >= port.gather_from();
  return send_datagram(wire::DatagramType::kData, op.post.sequence, op.plan.hash, chunk,
                       op.source(*op.own.stream).subspan(offset, length),
                       chunk + 1 == op.plan.chunks, op.plan.small,
                       gather ? &op.post.input : nullptr);
}

}  // namespace mcast
