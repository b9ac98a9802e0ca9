// The sending half of a stream. Bytes become segments when the window allows it, in trains. A path
// keeps its order, so an acknowledgement of a transmission shows that all earlier ones that are not
// acknowledged were lost; within its own train, the packets before the last one that arrived. No
// transmission follows the tail that could show its loss: after two round trips its last segment is
// sent again, and the acknowledgement of that shows the rest; after that everything is sent again,
// from a window of one, at intervals that double. Timers wait for packets that are still at the
// sender's interface.
#include "sim/network/flows.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mcast::sim {

namespace {
constexpr Nanos kLongestTimeout = 120 * kSecond;
constexpr size_t kManyStreams = 4096;
}  // namespace

Flows::Flow* Flows::find(EndpointId from, EndpointId to, Channel channel) {
  const auto at = index_.find(stream_key(from, to, channel));
  return at == index_.end() ? nullptr : &flows_[at->second];
}

Flows::Flow& Flows::flow_of(EndpointId from, EndpointId to, Channel channel) {
  const auto [at, added] =
      index_.try_emplace(stream_key(from, to, channel), static_cast<uint32_t>(flows_.size()));
  if (!added) return flows_[at->second];
  Flow& flow = flows_.emplace_back();
  flow.from = from;
  flow.to = to;
  flow.channel = channel;
  flow.what = owner_.class_of(from, channel);
  flow.place = owner_.place_of(from);
  flow.far = owner_.place_of(to);
  if (flow.place.host != flow.far.host) {
    const auto way = static_cast<unsigned>(channel);
    const Router& router = fabric_.router();
    flow.out = router.unicast(flow.place.plane, flow.place.host, flow.far.host, way);
    flow.back = router.unicast(flow.place.plane, flow.far.host, flow.place.host, way);
  }
  flow.sender.window = static_cast<double>(options_.first_window * options_.segment);
  return flow;
}

void Flows::send(EndpointId from, EndpointId to, Channel channel, Frame frame) {
  Flow& flow = flow_of(from, to, channel);
  if (flow.broken) return;
  if (flow.place.host == flow.far.host) {
    return push_local({from, to, channel, std::move(frame), false, 0, 0});
  }
  flow.accepted += frame.size();
  flow.frames.push({std::move(frame), flow.accepted, 0, 0});
  pump(index_.at(stream_key(from, to, channel)));
}

void Flows::send_length(EndpointId from, EndpointId to, Channel channel, uint64_t bytes,
                        uint64_t note) {
  Flow& flow = flow_of(from, to, channel);
  if (flow.broken) return;
  if (flow.place.host == flow.far.host) {
    return push_local({from, to, channel, {}, false, bytes, note});
  }
  flow.accepted += bytes;
  flow.frames.push({{}, flow.accepted, bytes, note});
  pump(index_.at(stream_key(from, to, channel)));
}

size_t Flows::queued(EndpointId from, EndpointId to, Channel channel) const {
  const auto at = index_.find(stream_key(from, to, channel));
  if (at == index_.end()) return 0;
  const uint64_t unsent = flows_[at->second].accepted - flows_[at->second].sender.cut;
  return unsent > options_.low_water ? unsent - options_.low_water : 0;
}

bool Flows::reachable(const Flow& flow) {
  if (flow.broken) return false;
  if (!held_.empty() && held_.count(flow.from) + held_.count(flow.to) > 0) return false;
  if (!pair_held(flow.from, flow.to)) return true;
  totals_.cut++;
  return false;
}

void Flows::pump(uint32_t index) {
  const Flow& flow = flows_[index];
  while (!flow.broken && flow.sender.at_interface < options_.interface) {
    if (!(flow.sender.lost > 0 ? send_lost(index) : send_new(index))) break;
  }
}

TrainRef Flows::begin_train(uint32_t index, uint64_t segment) {
  Flow& flow = flows_[index];
  TrainRef train = trains_.make();
  train->from = flow.from;
  train->plane = flow.place.plane;
  train->stream.flow = index;
  train->route = flow.out;
  train->overhead = options_.overhead;
  train->what = flow.what;
  train->stream.segment = segment;
  train->stream.serial = ++flow.sender.serial;
  train->stream.sent = events_.now();
  return train;
}

// Sends one run of consecutive lost segments.
bool Flows::send_lost(uint32_t index) {
  Flow& flow = flows_[index];
  Sender& s = flow.sender;
  const double window = s.window;
  size_t i = 0;
  while (!s.segments[i].lost) i++;
  if (s.in_flight > 0 && static_cast<double>(s.in_flight + s.segments[i].bytes) > window) {
    return false;
  }
  const TrainRef train = begin_train(index, s.base + i);
  for (; i < s.segments.size() && s.segments[i].lost && train->count < options_.train; i++) {
    Segment& segment = s.segments[i];
    if (train->count > 0 && (static_cast<double>(s.in_flight + segment.bytes) > window ||
                             train->wire + segment.bytes > fabric_.train_limit())) {
      break;
    }
    segment.lost = false;
    segment.serial = train->stream.serial;
    s.lost--;
    s.in_flight += segment.bytes;
    train->add(segment.bytes);
  }
  totals_.again += train->count;
  transmit(index, train);
  return true;
}

bool Flows::send_new(uint32_t index) {
  Flow& flow = flows_[index];
  Sender& s = flow.sender;
  if (s.cut == flow.accepted || flow.unread >= options_.window) return false;
  const double window = std::min(s.window, static_cast<double>(options_.window - flow.unread));
  TrainRef train;
  while (s.cut < flow.accepted && (!train || train->count < options_.train)) {
    const auto bytes =
        static_cast<uint32_t>(std::min<uint64_t>(options_.segment, flow.accepted - s.cut));
    if (s.in_flight > 0 && static_cast<double>(s.in_flight + bytes) > window) break;
    if (options_.cork && bytes < options_.segment && (train || s.at_interface > 0)) break;
    if (train && train->wire + bytes > fabric_.train_limit()) break;
    if (!train) train = begin_train(index, s.base + s.segments.size());
    Segment segment;
    segment.bytes = bytes;
    segment.serial = train->stream.serial;
    s.segments.push(segment);
    s.cut += bytes;
    s.in_flight += bytes;
    train->add(bytes);
  }
  if (!train) return false;
  totals_.segments += train->count;
  transmit(index, train);
  return true;
}

// A train that a full interface refuses is treated as lost on the way.
void Flows::transmit(uint32_t index, const TrainRef& train) {
  const Place& place = flows_[index].place;
  size_t& at_interface = flows_[index].sender.at_interface;
  at_interface += train->wire;
  arm(index);
  if (!fabric_.send(place.host, train, place.queue)) at_interface -= train->wire;
}

void Flows::on_departure(const Train& train) {
  if (train.stream.ack) return;
  flows_[train.stream.flow].sender.at_interface -= train.wire;
  go_on(train.stream.flow);
}

// There is room again: more bytes may be sent, and the owner may queue more.
void Flows::go_on(uint32_t index) {
  const Flow& flow = flows_[index];
  const bool queueing = flow.accepted - flow.sender.cut > options_.low_water;
  pump(index);
  if (queueing) owner_.on_room(flow.from);
}

// ---- acknowledgements ----

// Returns the number of bytes that this newly acknowledges.
uint64_t Flows::settle(Flow& flow, Segment& segment) {
  if (segment.acked) return 0;
  segment.acked = true;
  if (segment.lost) {
    segment.lost = false;
    flow.sender.lost--;
  } else {
    flow.sender.in_flight -= segment.bytes;
  }
  return segment.bytes;
}

uint64_t Flows::take_acks(Flow& flow, const Train& ack) {
  Sender& s = flow.sender;
  uint64_t bytes = 0;
  for (uint64_t left = ack.stream.arrived; left != 0; left &= left - 1) {
    const uint64_t number = ack.stream.segment + static_cast<unsigned>(std::countr_zero(left));
    if (number >= s.base) bytes += settle(flow, s.segments[number - s.base]);
  }
  while (s.base < ack.stream.received) {
    bytes += settle(flow, s.segments.front());
    s.segments.pop();
    s.base++;
  }
  return bytes;
}

bool Flows::find_losses(Flow& flow, const Train& ack) {
  Sender& s = flow.sender;
  if (s.segments.empty() || s.segments.front().serial > ack.stream.serial) return false;
  const uint64_t last = ack.stream.segment +
                        static_cast<unsigned>(std::bit_width(ack.stream.arrived)) - 1;  // arrived
  bool halve = false;
  for (size_t i = 0; i < s.segments.size(); i++) {
    Segment& segment = s.segments[i];
    const bool earlier = segment.serial < ack.stream.serial ||
                         (segment.serial == ack.stream.serial && s.base + i < last);
    if (segment.acked || segment.lost || !earlier) continue;
    segment.lost = true;
    s.lost++;
    s.in_flight -= segment.bytes;
    halve = halve || segment.serial > s.recover;
  }
  return halve;
}

void Flows::on_ack(uint32_t index, const Train& ack) {
  Flow& flow = flows_[index];
  Sender& s = flow.sender;
  const bool full = static_cast<double>(s.in_flight) * 2 >= s.window;
  const auto bytes = static_cast<double>(take_acks(flow, ack));
  const auto trip = static_cast<double>(events_.now() - ack.stream.sent);
  s.round_trip = s.round_trip == 0 ? trip : 0.875 * s.round_trip + 0.125 * trip;
  const auto segment = static_cast<double>(options_.segment);
  if (find_losses(flow, ack)) {
    // Once per round trip: all segments sent until now belong to this loss.
    s.threshold = s.window = std::max(s.window / 2, 2 * segment);
    s.recover = s.serial;
    totals_.halvings++;
  } else if (full && ack.stream.serial > s.recover) {
    s.window += s.window < s.threshold ? bytes : segment * bytes / s.window;
    s.window = std::min(s.window, static_cast<double>(options_.window));
  }
  if (bytes > 0) s.tries = 0;
  s.timer = kNever;
  arm(index);
  go_on(index);
  const bool idle = s.segments.empty() && s.cut == flow.accepted;
  if (idle && flows_.size() >= kManyStreams) s.segments.release();  // many are used once
}

// ---- timers ----

void Flows::arm(uint32_t index) {
  Flow& flow = flows_[index];
  Sender& s = flow.sender;
  if (s.in_flight == 0 && s.lost == 0) return;
  Nanos after = options_.timeout;
  if (s.tries > 0) {
    after = std::min(kLongestTimeout, options_.timeout << std::min(s.tries - 1, 12u));
  } else if (s.round_trip > 0) {
    after = static_cast<Nanos>(2 * s.round_trip);
  }
  s.timer = events_.now() + after;
  if (s.pushed <= s.timer) return;  // the pending event checks it and is pushed again
  s.pushed = s.timer;
  events_.push(s.timer, EventKind::kFlow, index);
}

void Flows::on_timer(uint32_t index) {
  Flow& flow = flows_[index];
  Sender& s = flow.sender;
  if (s.pushed != events_.now()) return;  // an earlier event was pushed later
  s.pushed = kNever;
  if (flow.broken || (s.in_flight == 0 && s.lost == 0)) return;
  if (s.timer > events_.now()) {
    s.pushed = s.timer;
    return events_.push(s.timer, EventKind::kFlow, index);
  }
  if (s.at_interface > 0) return arm(index);  // packets still on this host are not lost
  s.tries++;
  totals_.timeouts++;
  if (s.tries == 1 && s.round_trip > 0 && s.in_flight > 0) {
    size_t last = s.segments.size() - 1;
    while (last > 0 && (s.segments[last].acked || s.segments[last].lost)) last--;
    const TrainRef train = begin_train(index, s.base + last);
    s.segments[last].serial = train->stream.serial;
    train->add(s.segments[last].bytes);
    totals_.again++;
    return transmit(index, train);
  }
  for (size_t i = 0; i < s.segments.size(); i++) {
    Segment& segment = s.segments[i];
    if (segment.acked || segment.lost) continue;
    segment.lost = true;
    s.lost++;
    s.in_flight -= segment.bytes;
  }
  const auto segment = static_cast<double>(options_.segment);
  s.threshold = std::max(s.window / 2, 2 * segment);
  s.window = segment;
  s.recover = s.serial;
  pump(index);
  arm(index);
}

}  // namespace mcast::sim
