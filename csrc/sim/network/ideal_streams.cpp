// A frame's arrival is computed when it is sent: after the latency, after the frame before it, and
// after its own time at the stream's rate. Frames of an endpoint that is held are kept in the order
// of their arrival and handed over when it is released, as TCP would have retransmitted them.
#include "sim/network/ideal_streams.h"

#include <algorithm>

namespace mcast::sim {

void IdealStreams::schedule(Nanos at, Entry entry) {
  const uint32_t index = entries_.take();
  entries_[index] = std::move(entry);
  events_.push(at, EventKind::kFrame, index);
}

void IdealStreams::send(EndpointId from, EndpointId to, Channel channel, Frame frame) {
  if (cut_.count({from, to}) > 0) return;
  const size_t bytes = frame.size();
  const Nanos jitter = static_cast<Nanos>(rng_.below(static_cast<uint64_t>(options_.jitter) + 1));
  Nanos at = events_.now() + options_.latency + jitter;
  const uint64_t key = stream_key(from, to, channel);
  Nanos& last = last_[key];
  if (options_.rate > 0 && channel != Channel::kControl) {
    at = std::max(at, last) + static_cast<Nanos>(static_cast<double>(bytes) * 1e9 / options_.rate);
    queued_[key] += bytes;
    schedule(at - options_.latency, {What::kLeft, from, to, channel, {}, bytes});
  }
  at = std::max(at, last + 1);
  last = at;
  schedule(at, {What::kArrival, from, to, channel, std::move(frame), bytes});
}

size_t IdealStreams::queued(EndpointId from, EndpointId to, Channel channel) const {
  if (queued_.empty()) return 0;
  const auto at = queued_.find(stream_key(from, to, channel));
  return at == queued_.end() ? 0 : at->second;
}

void IdealStreams::cut(EndpointId a, EndpointId b) {
  cut_.insert({a, b});
  cut_.insert({b, a});
}

void IdealStreams::close(EndpointId from, EndpointId to) {
  Nanos last = events_.now() + options_.latency;
  for (size_t c = 0; c < kChannels; c++) {
    const auto at = last_.find(stream_key(from, to, static_cast<Channel>(c)));
    if (at != last_.end()) last = std::max(last, at->second);
  }
  schedule(last + 1, {What::kEnd, from, to, Channel::kControl, {}, 0});
}

void IdealStreams::hold(EndpointId endpoint, bool held) {
  if (held) {
    held_.try_emplace(endpoint);
    return;
  }
  const auto at = held_.find(endpoint);
  if (at == held_.end()) return;
  std::vector<Entry> entries = std::move(at->second);
  held_.erase(at);
  for (Entry& entry : entries) arrive(std::move(entry));
}

void IdealStreams::on_event(EventKind, uint32_t index) {
  Entry entry = std::move(entries_[index]);
  entries_.give(index);
  if (entry.what == What::kLeft) {
    queued_[stream_key(entry.from, entry.to, entry.channel)] -= entry.bytes;
    owner_.on_room(entry.from);
  } else if (entry.what == What::kEnd) {
    owner_.on_stream_closed(entry.from, entry.to);
  } else if (const auto to = held_.find(entry.to); to != held_.end()) {
    to->second.push_back(std::move(entry));
  } else if (const auto from = held_.find(entry.from); from != held_.end()) {
    from->second.push_back(std::move(entry));
  } else {
    arrive(std::move(entry));
  }
}

void IdealStreams::arrive(Entry entry) {
  if (dead_.count(entry.to) > 0 || cut_.count({entry.from, entry.to}) > 0) return;
  owner_.on_stream_frame(entry.from, entry.to, entry.channel, std::move(entry.frame));
}

}  // namespace mcast::sim
