// The harm is noticed by what the lane has received and by how chunks have come, both of which are
// counted anyway. Who has left knows how much came at that time; when it listens again, a quarter
// of that is taken for the same flood, however little else there is.
#include "collective/flood.h"

#include <algorithm>

namespace mcast {

FloodWatch::Totals Flood::totals() const {
  const Port::Received lane = g_.port.received();
  const uint64_t repaired = g_.counters.get(Counter::repair_chunks_received);
  return {lane.verified, lane.useless, g_.counters.get(Counter::chunks_placed) - repaired, repaired,
          lane.foreign};
}

bool Flood::noticed(Nanos now) { return watch_.look(totals(), now) == FloodWatch::Seen::kFlooded; }

void Flood::leave_if_noisy(Nanos now) {
  if (left_) return;
  const FloodWatch::Seen seen = watch_.look(totals(), now);
  // What it was told stands until it has looked itself.
  if (seen != FloodWatch::Seen::kNothing) believed_ = seen != FloodWatch::Seen::kCalm;
  on_path(true);
}

void Flood::on_path(bool ring) {
  if (!ring) return end_round(true);
  if (!believed_ || left_) return;
  rate_ = std::max(watch_.rate(), FloodWatch::kLeast);
  g_.counters.add(Counter::floods_left);
  leave();
}

void Flood::leave() {
  left_ = true;
  (void)g_.port.receive_multicast(false);
}

void Flood::listen(Nanos now) {
  if (!left_) return;
  joined_ = g_.port.receive_multicast(true);
  listen_since_ = now;
  listen_until_ = now + kListen;
  heard_before_ = g_.port.received().useless;
}

bool Flood::listening(Nanos now) {
  if (now < listen_until_ && listen_until_ != kNever) return true;
  listen_until_ = kNever;
  return false;
}

std::string Flood::objection(Nanos now) const {
  if (!left_) return "";
  const std::string who = "rank " + std::to_string(g_.self);
  if (!joined_.ok()) return who + ": " + joined_.message();
  const uint64_t time = static_cast<uint64_t>(std::max<Nanos>(1, now - listen_since_));
  const uint64_t heard = g_.port.received().useless - heard_before_;
  const uint64_t rate = heard * static_cast<uint64_t>(kSecond) / time;
  if (rate < rate_ / kPart) return "";
  return who + " is flooded still, by " + std::to_string(rate) + " datagrams a second";
}

void Flood::end_round(bool multicast) {
  listen_until_ = kNever;
  if (multicast) believed_ = false;
  if (!left_) return;
  if (!multicast) return leave();
  left_ = false;
  (void)g_.port.receive_multicast(true);  // not joined, where it was not asked before
}

}  // namespace mcast
