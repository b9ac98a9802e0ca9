// Two steps on the control tree. Joining: a member whose subtree has joined reports that; the top
// then starts all. A late member only costs the others time, since no time limit runs before.
// Probing: every member multicasts probes until the verdict is known; a member whose subtree hears
// everyone reports so at once; one that does not by the time limit names the missing members; the
// top decides for all.
//
// Members send in turn: in a sweep each sends once, at a rate that does not depend on their number,
// so neither links nor receive buffers are flooded in large groups. As all have joined by then, one
// sweep is normally enough; later ones, for losses and for switches that learn slowly, have a
// quarter of the rate. Beyond the time limit, when the verdict waits for members that started later
// or whose report is delayed, probes become ever rarer: those of several groups may exceed a link's
// capacity, and would delay the verdict.
#include "protocol/probe.h"

#include <algorithm>

namespace mcast {
namespace {
constexpr Nanos kFirstInterval = 2 * kMilli;
constexpr Nanos kMaxInterval = 50 * kMilli;
constexpr Nanos kNewsInterval = kSecond;
constexpr uint64_t kProbeRate = 32u << 20;  // bytes per second, of all members together
// Factor by which later sweeps are slower than the first.
constexpr int kSlower = 4;
constexpr int kSweeps = 4;  // number of sweeps that fit into any time limit
// After the limit, 1 / kOvertime of the elapsed time passes before the next probe.
constexpr int kOvertime = 4;
constexpr size_t kMaxWhy = 600;
constexpr size_t kNamed = 8;  // most ranks named in a reason

Nanos sweep_of(uint32_t members, size_t bytes) {
  return static_cast<Nanos>(members * static_cast<uint64_t>(bytes) *
                            static_cast<uint64_t>(kSecond / kMicro) / kProbeRate) *
         kMicro;
}

}  // namespace

ReachProbe::ReachProbe(Params params, Nanos now)
    : self_(params.self),
      heard_(params.members, false),
      heard_small_(params.members, false),
      deaf_to_(params.members - 1),
      children_(params.children),
      reach_(params.reach),
      why_(std::move(params.why)),
      timeout_(params.timeout),
      sweep_(sweep_of(params.members, params.bytes)),
      bytes_(params.bytes),
      headers_(params.headers),
      next_news_(now + kNewsInterval),
      interval_(kFirstInterval) {
  heard_[self_] = true;
}

bool ReachProbe::all_joined() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.joined; });
}

bool ReachProbe::all_spoken() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.ok >= 0; });
}

void ReachProbe::add_reason(const std::string& why) {
  if (why_.size() < kMaxWhy) why_ += (why_.empty() ? "" : "; ") + why.substr(0, kMaxWhy);
}

void ReachProbe::on_joined(uint32_t child, Reach reach, const std::string& why) {
  children_[child].joined = true;
  reach_ = std::min(reach_, reach);
  if (reach == Reach::kNone) add_reason(why);
}

void ReachProbe::on_missing(uint32_t child, const std::string& text) {
  children_[child].missing = text.substr(0, kMaxWhy);
}

bool ReachProbe::joined(Reach& reach, std::string& why) {
  if (told_joined_ || !all_joined()) return false;
  told_joined_ = true;
  reach = reach_;
  why = why_;
  return true;
}

bool ReachProbe::news(Nanos now, const std::string& above, Member first_child, const Here& here,
                      std::string& text) {
  if (now < next_news_ || waits_for_none()) return false;
  next_news_ = now + kNewsInterval;
  const std::string below = missing_text(first_child, here);
  text = (above + (above.empty() || below.empty() ? "" : "; ") + below).substr(0, kMaxWhy);
  if (text.empty() || text == told_missing_) return false;
  told_missing_ = text;
  return true;
}

void ReachProbe::start(Nanos now) {
  if (started_) return;
  started_ = true;
  begun_ = now;
  give_up_ = now + timeout_ + kSweeps * kSlower * sweep_;
  next_send_ = now + sweep_ * self_ / static_cast<Nanos>(heard_.size());
}

void ReachProbe::on_probe(Member from, bool full) {
  if (from >= heard_.size()) return;
  if (!full) {
    heard_small_[from] = true;
  } else if (!heard_[from]) {
    heard_[from] = true;
    deaf_to_--;
  }
}

void ReachProbe::on_status(uint32_t child, bool ok, const std::string& why) {
  children_[child].ok = ok ? 1 : 0;
  if (!ok) add_reason(why);
}

bool ReachProbe::send_due(Nanos now) {
  if (now < next_send_) return false;
  const Nanos overtime = now > give_up_ ? (now - begun_) / kOvertime : 0;
  next_send_ = now + std::max({interval_, kSlower * sweep_, overtime});
  interval_ = std::min(kMaxInterval, interval_ * 2);
  sent_++;
  return true;
}

bool ReachProbe::verdict(Nanos now, bool& ok, std::string& why) {
  if (told_ || !started_ || (deaf_to_ > 0 && now < give_up_)) return false;
  // A child that has not reported is not late by this member's clock: it may have started later.
  if (!all_spoken()) return false;
  if (deaf_to_ > 0) {
    const std::string mine = unheard();
    why_ = why_.empty() ? mine : mine + "; " + why_;
  }
  ok = deaf_to_ == 0 &&
       std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.ok == 1; });
  why = why_;
  told_ = true;
  return true;
}

std::string ReachProbe::unheard() const {
  const auto list = [this](bool small) {
    std::string text;
    size_t found = 0;
    for (size_t m = 0; m < heard_.size(); m++) {
      if (heard_[m] || heard_small_[m] != small) continue;
      if (found++ < kNamed) text += (found > 1 ? ", " : "") + std::to_string(m);
    }
    return text + (found > kNamed ? " and " + std::to_string(found - kNamed) + " more" : "");
  };
  const std::string self = "rank " + std::to_string(self_);
  const std::string deaf = list(false), cut = list(true);
  std::string text = deaf.empty() ? "" : self + " does not hear rank " + deaf;
  if (cut.empty()) return text;
  return text + (text.empty() ? "" : "; ") + self + " hears only small datagrams of rank " + cut +
         ": IP packets of " + std::to_string(bytes_ + headers_) +
         " bytes are lost, so the path has a smaller MTU; set MCAST_MAX_MTU to it on all ranks";
}

std::string ReachProbe::missing_text(Member first_child, const Here& here) const {
  std::string absent, below;
  int named = 0;
  for (uint32_t c = 0; c < children_.size(); c++) {
    if (children_[c].joined) continue;
    if (!here(c)) {
      if (named++ < 8) absent += (absent.empty() ? "" : ", ") + std::to_string(first_child + c);
    } else if (!children_[c].missing.empty() && below.size() < kMaxWhy) {
      below += (below.empty() ? "" : "; ") + children_[c].missing;
    }
  }
  if (!absent.empty()) {
    absent = "rank(s) " + absent +
             (named > 8 ? " and " + std::to_string(named - 8) + " more" : "") + " have not joined";
  }
  return (absent + (absent.empty() || below.empty() ? "" : "; ") + below).substr(0, kMaxWhy);
}

std::string ReachProbe::open_text(Member first_child, const Here& here) const {
  if (!started_) return missing_text(first_child, here);
  std::string children;
  int named = 0;
  for (size_t c = 0; c < children_.size() && named < 8; c++) {
    if (children_[c].ok >= 0) continue;
    children += (named++ ? ", " : "") + std::to_string(first_child + c);
  }
  if (!children.empty()) children = "rank(s) " + children + " have not reported";
  if (deaf_to_ == 0) return children;
  return unheard() + (children.empty() ? "" : ", ") + children;
}

Nanos ReachProbe::deadline() const {
  if (!started_) return waits_for_none() ? kNever : next_news_;
  // While a child's report is outstanding the time limit changes nothing: the verdict waits for the
  // child.
  return !told_ && deaf_to_ > 0 && all_spoken() ? std::min(next_send_, give_up_) : next_send_;
}

}  // namespace mcast
