// Watched members are pinged after a quiet interval; any frame is a sign of life. If this process
// itself polls late, that is not evidence against others: the gap is added to everybody's last sign
// of life.
#include "protocol/liveness.h"

#include <algorithm>

namespace mcast {

Liveness::Liveness(std::vector<Member> watched, Nanos limit, Nanos interval)
    : watched_(std::move(watched)),
      limit_(limit),
      interval_(interval > 0 ? interval : std::min<Nanos>(limit / 8, kSecond)) {
  std::sort(watched_.begin(), watched_.end());
  watched_.erase(std::unique(watched_.begin(), watched_.end()), watched_.end());
  heard_.resize(watched_.size());
  pinged_.resize(watched_.size());
  met_.assign(watched_.size(), true);
}

size_t Liveness::index(Member m) const {
  const auto it = std::lower_bound(watched_.begin(), watched_.end(), m);
  return it != watched_.end() && *it == m ? static_cast<size_t>(it - watched_.begin())
                                          : watched_.size();
}

void Liveness::heard(Member m, Nanos now) {
  const size_t i = index(m);
  if (i >= watched_.size()) return;
  heard_[i] = std::max(heard_[i], now);
  met_[i] = true;
}

void Liveness::forget(Member m) {
  const size_t i = index(m);
  if (i >= watched_.size()) return;
  const auto at = static_cast<std::ptrdiff_t>(i);
  watched_.erase(watched_.begin() + at);
  heard_.erase(heard_.begin() + at);
  pinged_.erase(pinged_.begin() + at);
  met_.erase(met_.begin() + at);
}

void Liveness::watch_only(std::vector<Member> members, Nanos now) {
  Liveness next(std::move(members), limit_, interval_);
  for (size_t i = 0; i < next.watched_.size(); i++) {
    const size_t before = index(next.watched_[i]);
    next.heard_[i] = before < watched_.size() ? heard_[before] : now;
    next.pinged_[i] = now;
  }
  next.active_ = active_;
  next.last_poll_ = last_poll_;
  *this = std::move(next);
}

void Liveness::all_met(Nanos now) {
  for (size_t i = 0; i < watched_.size(); i++) {
    if (!met_[i]) heard_[i] = pinged_[i] = now;
    met_[i] = true;
  }
}

bool Liveness::met(Member m) const {
  const size_t i = index(m);
  return i >= watched_.size() || met_[i];
}

void Liveness::set_active(bool active, Nanos now) {
  if (active && !active_) {
    for (Nanos& h : heard_) h = std::max(h, now);
    for (Nanos& p : pinged_) p = std::max(p, now);
    last_poll_ = now;
  }
  active_ = active;
}

void Liveness::on_poll(Nanos now) {
  const Nanos gap = now - last_poll_;
  last_poll_ = now;
  if (!active_ || gap <= 2 * interval_) return;
  for (Nanos& h : heard_) h = std::min(now, h + gap);
}

void Liveness::due(Nanos now, std::vector<Member>& ping) {
  ping.clear();
  if (!active_) return;
  for (size_t i = 0; i < watched_.size(); i++) {
    if (met_[i] && now - heard_[i] >= interval_ && now - pinged_[i] >= interval_) {
      pinged_[i] = now;
      ping.push_back(watched_[i]);
    }
  }
}

Member Liveness::silent(Nanos now) const {
  if (!active_) return kNoMember;
  for (size_t i = 0; i < watched_.size(); i++) {
    if (met_[i] && now - heard_[i] > limit_) return watched_[i];
  }
  return kNoMember;
}

Nanos Liveness::silence(Member m, Nanos now) const {
  const size_t i = index(m);
  return i < watched_.size() ? now - heard_[i] : 0;
}

Nanos Liveness::deadline() const {
  if (!active_) return kNever;
  Nanos next = kNever;
  for (size_t i = 0; i < watched_.size(); i++) {
    if (!met_[i]) continue;
    const Nanos ping = std::max(heard_[i], pinged_[i]) + interval_;
    next = std::min({next, ping, heard_[i] + limit_ + 1});
  }
  return next;
}

}  // namespace mcast
