// Checks again, during a group's life, whether multicast reaches all members. A member that reports
// another as unheard may be wrong (it was stopped, its socket was full), and a path that failed may
// work again, so a suspicion alone changes nothing. The top starts a round of the reach probe, on
// the control tree like the first one but without joining: all members multicast, each reports for
// its subtree, and the top decides. Rounds are numbered, so that late frames of one round are not
// taken for the next. On the ring path the top checks again by itself, with increasing intervals,
// while there is work. A member that has left the address because of a flood joins it for the
// round, and objects while the flood continues.
#include <algorithm>
#include <utility>

#include "collective/path_switch.h"

namespace mcast {
namespace {

constexpr Nanos kFirstCheck = 5 * kSecond;  // after the change to the ring; doubles
constexpr Nanos kLastCheck = 600 * kSecond;
constexpr Nanos kDenied = 5 * kSecond;  // after a round that found no fault, until the next
constexpr uint32_t kGoRound = 1;

}  // namespace

// Schedules the top's next check whether the ring is still needed.
void PathSwitch::check_later(Nanos now) {
  check_wait_ = check_wait_ == 0 ? kFirstCheck : std::min(2 * check_wait_, kLastCheck);
  next_check_ = now + check_wait_;
}

void PathSwitch::watch_flood(Nanos now) {
  const MulticastUse& use = g_.params.multicast;
  if (!use.wanted || use.required || g_.state != GroupState::kOpen) return;
  if (g_.path.on_ring()) return flood_.leave_if_noisy(now);
  if (flood_.noticed(now)) {
    on_flood("rank " + std::to_string(g_.self) +
                 " is flooded: 9 of 10 multicast datagrams that it receives are of no use, "
                 "and most data comes by repair",
             now);
  }
}

// Called by every progress() of a group that has work.
void PathSwitch::drive(Nanos now) {
  if (!g_.leaving.all_here) return;
  rates_.drive(now);  // in any case: otherwise its deadline could pass without an action
  if (check_) return drive_check(now);
  watch_flood(now);
  act_on_rates(now);
  if (!g_.tree.is_top(g_.self) || !g_.path.on_ring() || !g_.params.multicast.wanted ||
      g_.path.no_multicast || g_.state != GroupState::kOpen)
    return;
  if (next_check_ == kNever) check_later(now);
  if (now >= next_check_) start_check(now, "");
}

// A ring chosen for its rate is checked as rarely as one that has been needed for long.
void PathSwitch::act_on_rates(Nanos now) {
  if (g_.state != GroupState::kOpen || !g_.tree.is_top(g_.self)) return;
  if (rates_.due(now)) return draw_for_rates(now);
  const auto verdict = rates_.take_verdict();
  if (!verdict || verdict->to_ring == g_.path.on_ring()) return;
  if (verdict->to_ring) next_check_ = now + RateTest::kRest;
  begin(verdict->to_ring, verdict->why, now);
}

void PathSwitch::start_check(Nanos now, const std::string& why) {
  if (check_ || g_.switching()) return;
  suspicion_ = why;
  begin_round(round_ + 1, now);
}

void PathSwitch::begin_round(uint32_t round, Nanos now) {
  round_ = round;
  g_.counters.add(Counter::path_checks);
  flood_.listen(now);
  ReachProbe::Params params = probe_params(g_);
  // A member that listens gives no verdict until that is over (drive_check()). With a shorter
  // timeout the deadline would pass without an action, and the lane would spin until then.
  if (flood_.deadline() != kNever) params.timeout = std::max(params.timeout, Flood::kListen);
  check_.emplace(std::move(params), now);
  check_->start(now);
  g_.send_to_children(wire::FrameType::kProbeStart, round_, kGoRound);
}

void PathSwitch::drive_check(Nanos now) {
  if (check_->send_due(now)) send_probes(g_, *check_, round_);
  bool ok = false;
  std::string why;
  if (flood_.listening(now) || !check_->verdict(now, ok, why)) return;
  if (const std::string flooded = flood_.objection(now); !flooded.empty()) {
    ok = false;
    why = flooded;
  }
  if (g_.tree.is_top(g_.self)) return end_round(ok, why, now);
  wire::Writer body;
  body.put_text(why);
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kProbeStatus, round_,
                ok ? 1 : 0, body.bytes());
}

// All members stop probing. The top changes the path if needed.
void PathSwitch::end_round(bool heard, const std::string& why, Nanos now) {
  g_.send_to_children(wire::FrameType::kProbeDone, round_, heard ? 1 : 0);
  check_.reset();
  flood_.end_round(heard, now);
  if (!g_.tree.is_top(g_.self)) return;
  if (g_.path.on_ring()) {
    if (heard) {
      return begin(false,
                   rates_.chose_ring() ? "to see whether multicast is faster now"
                                       : "multicast reaches every rank again",
                   now);
    }
    return check_later(now);
  }
  if (heard) {
    // All members receive each other: the next report of the opposite is ignored for a while.
    doubts_from_ = now + kDenied;
    return;
  }
  check_later(now);
  begin(true, suspicion_ + " (" + why + ")", now);
}

void PathSwitch::on_probe_frame(const Frame& header, ConstBytes body, Nanos now) {
  if (header.sequence == 0) return creation_.on_frame(header, body, now);
  if (!g_.leaving.all_here) return g_.counters.add(Counter::stale);
  using wire::FrameType;
  const bool up = header.type == FrameType::kProbeStatus;
  const bool known = up ? g_.tree.is_child(header.member, g_.self) : g_.from_parent(header.member);
  if (!known || header.type == FrameType::kProbeJoined || header.argument > 1) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (header.type == FrameType::kProbeStart) {
    if (header.sequence > round_) begin_round(header.sequence, now);
  } else if (check_ && header.sequence == round_) {
    if (up) {
      check_->on_status(g_.tree.child_index(header.member), header.argument == 1,
                        std::string(wire::Reader(body).rest_text()));
    } else {
      end_round(header.argument == 1, "", now);
    }
  }
}

}  // namespace mcast
