// The receiving half of a stream, and the end of streams. Each train that arrives is acknowledged
// immediately, with as many packets as TCP would send. A frame is handed over when all bytes up to
// its end are there. An endpoint that is held loses every train to and from it, which timers repair
// later. Between endpoints of one host frames take a fixed time and use no link.
#include <algorithm>
#include <bit>
#include <utility>

#include "sim/network/flows.h"

namespace mcast::sim {

void Flows::on_train(const TrainRef& train, uint64_t mask) {
  if (!reachable(flows_[train->stream.flow])) return;
  if (train->stream.ack) {
    on_ack(train->stream.flow, *train);
  } else {
    on_data(train->stream.flow, *train, mask);
  }
}

void Flows::on_data(uint32_t index, const Train& train, uint64_t mask) {
  Flow& flow = flows_[index];
  Sender& s = flow.sender;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    const uint64_t number = train.stream.segment + static_cast<unsigned>(std::countr_zero(left));
    if (number >= s.base) s.segments[number - s.base].arrived = true;
  }
  flow.received = std::max(flow.received, s.base);
  while (flow.received - s.base < s.segments.size()) {
    const Segment& next = s.segments[flow.received - s.base];
    if (!next.arrived) break;
    flow.delivered += next.bytes;
    flow.received++;
  }
  acknowledge(index, train, mask);
  hand_over(flow);
}

void Flows::acknowledge(uint32_t index, const Train& train, uint64_t mask) {
  const Flow& flow = flows_[index];
  const TrainRef ack = trains_.make();
  ack->from = flow.to;
  ack->plane = flow.place.plane;
  ack->stream.flow = index;
  ack->stream.ack = true;
  ack->what = TrafficClass::kAck;
  ack->overhead = 0;
  ack->route = flow.back;
  ack->stream.segment = train.stream.segment;
  ack->stream.serial = train.stream.serial;
  ack->stream.sent = train.stream.sent;
  ack->stream.arrived = mask;
  ack->stream.received = flow.received;
  // If that takes more packets than arrived for one, the acknowledgement has the share of its
  // bytes.
  const auto news = static_cast<unsigned>(std::popcount(mask));
  const unsigned packets = (news + options_.ack_every - 1) / options_.ack_every;
  const size_t bytes = size_t{options_.ack} * news / (options_.ack_every * packets);
  for (unsigned i = 0; i < packets; i++) ack->add(std::max<size_t>(1, bytes));
  (void)fabric_.send(flow.far.host, ack, flow.far.queue);  // a later one repeats it
}

void Flows::hand_over(Flow& flow) {
  while (!flow.frames.empty() && flow.frames.front().end <= flow.delivered) {
    Waiting next = std::move(flow.frames.front());
    flow.frames.pop();
    if (next.length > 0) {
      owner_.on_stream_length(flow.from, flow.to, flow.channel, next.length, next.note);
      continue;
    }
    flow.unread += next.frame.size();
    owner_.on_stream_frame(flow.from, flow.to, flow.channel, std::move(next.frame));
  }
  if (closing_.empty() || closing_.count({flow.from, flow.to}) == 0) return;
  if (!all_handed_over(flow.from, flow.to)) return;
  closing_.erase({flow.from, flow.to});
  owner_.on_stream_closed(flow.from, flow.to);
}

void Flows::on_taken(EndpointId from, EndpointId to, Channel channel, size_t bytes) {
  const auto at = index_.find(stream_key(from, to, channel));
  if (at == index_.end()) return;
  Flow& flow = flows_[at->second];
  flow.unread -= std::min(bytes, flow.unread);
  if (flow.sender.cut < flow.accepted) pump(at->second);
}

void Flows::push_local(Local local) {
  const uint32_t index = locals_.take();
  locals_[index] = std::move(local);
  events_.push(events_.now() + options_.loopback, EventKind::kFrame, index);
}

void Flows::on_event(EventKind kind, uint32_t index) {
  if (kind == EventKind::kFlow) return on_timer(index);
  Local local = std::move(locals_[index]);
  locals_.give(index);
  const bool cut = pair_held(local.from, local.to);
  if (cut || held_.count(local.from) + held_.count(local.to) > 0) {
    totals_.cut += cut ? 1 : 0;
    return held_locals_.push_back(std::move(local));
  }
  if (local.end) return owner_.on_stream_closed(local.from, local.to);
  const Flow* const flow = find(local.from, local.to, local.channel);
  if (flow == nullptr || flow->broken || dead_.count(local.to) > 0) return;
  if (local.length > 0) {
    return owner_.on_stream_length(local.from, local.to, local.channel, local.length, local.note);
  }
  owner_.on_stream_frame(local.from, local.to, local.channel, std::move(local.frame));
}

bool Flows::all_handed_over(EndpointId from, EndpointId to) {
  for (size_t c = 0; c < kChannels; c++) {
    const Flow* const flow = find(from, to, static_cast<Channel>(c));
    if (flow != nullptr && !flow->broken && !flow->frames.empty()) return false;
  }
  return true;
}

void Flows::close(EndpointId from, EndpointId to) {
  if (all_handed_over(from, to)) {
    push_local({from, to, Channel::kControl, {}, true, 0, 0});
  } else {
    closing_.insert({from, to});
  }
}

void Flows::break_flow(Flow& flow) {
  flow.broken = true;
  flow.frames.clear();
  flow.accepted = flow.sender.cut;
}

void Flows::cut(EndpointId a, EndpointId b) {
  for (size_t c = 0; c < kChannels; c++) {
    break_flow(flow_of(a, b, static_cast<Channel>(c)));
    break_flow(flow_of(b, a, static_cast<Channel>(c)));
  }
}

void Flows::drop(EndpointId endpoint) {
  dead_.insert(endpoint);
  for (Flow& flow : flows_) {
    if (flow.from == endpoint || flow.to == endpoint) break_flow(flow);
  }
}

void Flows::hold(EndpointId endpoint, bool held) {
  if (held) {
    held_.insert(endpoint);
  } else {
    held_.erase(endpoint);
    let_locals_go_on();
  }
}

void Flows::hold_pair(EndpointId a, EndpointId b, bool held) {
  if (held) {
    held_pairs_.insert(std::minmax(a, b));
  } else {
    held_pairs_.erase(std::minmax(a, b));
    let_locals_go_on();
  }
}

// In their order; frames that are still held wait again.
void Flows::let_locals_go_on() {
  for (Local& local : std::exchange(held_locals_, {})) push_local(std::move(local));
}

}  // namespace mcast::sim
