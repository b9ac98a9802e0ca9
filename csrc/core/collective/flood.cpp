// Harm shows in the lane's receive counters and in how chunks arrive, both of which are counted
// anyway. A member that has left remembers the rate at that time. When it listens again, a quarter
// of that rate counts as the same flood, even if there is no other traffic. The host counts ignored
// datagrams for all addresses: only the excess over the rate while the member was away counts.
#include "collective/flood.h"

#include <algorithm>

namespace mcast {
namespace {

uint64_t per_second(uint64_t count, Nanos time) {
  return count * static_cast<uint64_t>(kSecond) / static_cast<uint64_t>(std::max<Nanos>(1, time));
}

}  // namespace

FloodWatch::Totals Flood::totals() const {
  const Port::Received lane = g_.port.received();
  const uint64_t repaired = g_.counters.get(Counter::repair_chunks_received);
  return {lane.verified, lane.useless + lane.ignored,
          g_.counters.get(Counter::chunks_placed) - repaired, repaired, lane.foreign};
}

bool Flood::noticed(Nanos now) {
  return watch_.due(now) && watch_.look(totals(), now) == FloodWatch::Seen::kFlooded;
}

void Flood::leave_if_noisy(Nanos now) {
  if (left_ || !watch_.due(now)) return;
  const FloodWatch::Seen seen = watch_.look(totals(), now);
  // A reported flood counts until this member's own measurement decides.
  if (seen != FloodWatch::Seen::kNothing) believed_ = seen != FloodWatch::Seen::kCalm;
  on_path(true, now);
}

void Flood::on_path(bool ring, Nanos now) {
  if (!ring) return end_round(true, now);
  if (!believed_ || left_) return;
  rate_ = std::max(watch_.rate(), FloodWatch::kLeast);
  g_.counters.add(Counter::floods_left);
  leave(now);
}

void Flood::leave(Nanos now) {
  left_ = true;
  away_since_ = now;
  ignored_before_ = g_.port.received().ignored;
  (void)g_.port.receive_multicast(false);
}

void Flood::listen(Nanos now) {
  if (!left_) return;
  const Port::Received heard = g_.port.received();
  elsewhere_ = per_second(heard.ignored - ignored_before_, now - away_since_);
  joined_ = g_.port.receive_multicast(true);
  listen_since_ = now;
  listen_until_ = now + kListen;
  heard_before_ = heard.useless;
  ignored_before_ = heard.ignored;
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
  const Port::Received heard = g_.port.received();
  const Nanos time = now - listen_since_;
  const uint64_t ignored = per_second(heard.ignored - ignored_before_, time);
  const uint64_t rate =
      per_second(heard.useless - heard_before_, time) + ignored - std::min(ignored, elsewhere_);
  if (rate < rate_ / kPart) return "";
  return who + " is still flooded, by " + std::to_string(rate) + " datagrams a second";
}

void Flood::end_round(bool multicast, Nanos now) {
  listen_until_ = kNever;
  if (multicast) believed_ = false;
  if (!left_) return;
  if (!multicast) return leave(now);
  left_ = false;
  (void)g_.port.receive_multicast(true);  // joins, unless listen() has joined already
}

}  // namespace mcast
