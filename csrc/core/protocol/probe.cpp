// Every member multicasts probes at a growing interval until the verdict is known, so that members
// who join late still hear some. A member whose subtree hears everyone says so at once; one that
// does not by the time limit names whom it misses. The top decides for all.
#include "protocol/probe.h"

#include <algorithm>

namespace mcast {
namespace {
constexpr Nanos kFirstInterval = 2 * kMilli;
constexpr Nanos kMaxInterval = 50 * kMilli;
constexpr size_t kMaxWhy = 600;
}  // namespace

ReachProbe::ReachProbe(Member self, uint32_t members, uint32_t children, bool multicast,
                       Nanos timeout, Nanos now)
    : self_(self),
      heard_(members, false),
      missing_(multicast ? members - 1 : 0),
      child_(children, -1),
      multicast_(multicast),
      give_up_(now + timeout),
      next_send_(now),
      interval_(kFirstInterval) {
  heard_[self] = true;
}

void ReachProbe::on_probe(Member from) {
  if (from < heard_.size() && !heard_[from]) {
    heard_[from] = true;
    if (missing_ > 0) missing_--;
  }
}

void ReachProbe::on_status(uint32_t child, bool ok, const std::string& why) {
  child_[child] = ok ? 1 : 0;
  if (!ok && why_.size() < kMaxWhy) why_ += (why_.empty() ? "" : "; ") + why.substr(0, kMaxWhy);
}

bool ReachProbe::send_due(Nanos now) {
  if (!multicast_ || now < next_send_) return false;
  next_send_ = now + interval_;
  interval_ = std::min(kMaxInterval, interval_ * 2);
  return true;
}

bool ReachProbe::verdict(Nanos now, bool& ok, std::string& why) {
  if (told_) return false;
  const bool late = multicast_ && now >= give_up_;
  if (missing_ > 0 && !late) return false;
  // A child that has not spoken is not late by our clock: it may have joined after us.
  if (std::any_of(child_.begin(), child_.end(), [](int c) { return c < 0; })) return false;
  if (missing_ > 0) {
    const std::string mine = unheard();
    why_ = why_.empty() ? mine : mine + "; " + why_;
  }
  ok = missing_ == 0 && std::all_of(child_.begin(), child_.end(), [](int c) { return c == 1; });
  why = why_;
  told_ = true;
  return true;
}

std::string ReachProbe::unheard() const {
  std::string text = "rank " + std::to_string(self_) + " does not hear rank";
  int named = 0;
  for (size_t m = 0; m < heard_.size() && named < 8; m++) {
    if (!heard_[m]) text += (named++ ? ", " : " ") + std::to_string(m);
  }
  if (missing_ > 8) text += " and " + std::to_string(missing_ - 8) + " more";
  return text;
}

std::string ReachProbe::open_text(Member first_child) const {
  std::string children;
  int named = 0;
  for (size_t c = 0; c < child_.size() && named < 8; c++) {
    if (child_[c] >= 0) continue;
    children += (named++ ? ", " : "") + std::to_string(first_child + c);
  }
  if (!children.empty()) children = "rank(s) " + children + " have not reported";
  if (missing_ == 0) return children;
  return unheard() + (children.empty() ? "" : ", ") + children;
}

Nanos ReachProbe::deadline() const {
  Nanos next = multicast_ ? next_send_ : kNever;
  // With a child's word outstanding the time limit changes nothing: the verdict waits for the
  // child.
  const bool open = std::any_of(child_.begin(), child_.end(), [](int c) { return c < 0; });
  if (!told_ && multicast_ && missing_ > 0 && !open) next = std::min(next, give_up_);
  return next;
}

}  // namespace mcast
