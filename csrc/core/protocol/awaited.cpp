// Silence counts from the first word that a member was asked for, so nothing has to be remembered
// of members that nobody waits for.
#include "protocol/awaited.h"

#include <algorithm>
#include <utility>

namespace mcast {

Awaited::Awaited(Nanos limit) : limit_(limit), interval_(limit / 4) {}

void Awaited::begin(Nanos now) {
  next_ = now + interval_;
  last_poll_ = now;
}

void Awaited::end() {
  next_ = kNever;
  since_.clear();
}

void Awaited::on_poll(Nanos now) {
  const Nanos gap = now - last_poll_;
  last_poll_ = now;
  if (next_ == kNever || gap <= 2 * interval_) return;
  for (auto& [member, since] : since_) since = std::min(now, since + gap);
}

void Awaited::heard(Member m, Nanos now) {
  const auto it = since_.find(m);
  if (it != since_.end()) it->second = std::max(it->second, now);
}

void Awaited::ask_all(const std::vector<Member>& members, Nanos now) {
  std::map<Member, Nanos> asked;
  for (const Member m : members) {
    const auto before = since_.find(m);
    asked.emplace(m, before == since_.end() ? now : before->second);
  }
  since_ = std::move(asked);
  next_ = now + interval_;
}

std::optional<std::pair<Member, Nanos>> Awaited::silent(Nanos now) const {
  for (const auto& [member, since] : since_) {
    if (now - since > limit_) return std::pair(member, now - since);
  }
  return std::nullopt;
}

Nanos Awaited::deadline() const {
  Nanos next = next_;
  for (const auto& [member, since] : since_) next = std::min(next, since + limit_ + 1);
  return next;
}

}  // namespace mcast
