// Changes from multicast to the ring during a group's life, and back. A member that receives no
// multicast of another reports to the top, which queries all (path_check.cpp) and, if some do not
// receive others, starts the change: all agree on a cut-over (cutover.h), and later operations use
// the other path. Earlier ones end as they began, with repairs if needed. A reported flood
// (flood.h) needs no check: probes may arrive where data does not.
#include "collective/path_switch.h"

#include "base/log.h"

namespace mcast {
namespace {

// Argument of Switch, besides 0 to the ring and 1 to multicast.
constexpr uint32_t kForRates = 2;
// Argument of Deaf: the fault.
constexpr uint32_t kUnheard = 0, kFlooded = 1;

}  // namespace

void PathSwitch::stop() {
  check_.reset();
  rates_.stop();
  flood_.stop();
  cutover_.give_up();
}

void PathSwitch::judge(const Operation& op, Nanos now) {
  if (g_.path.on_ring() || check_ || g_.switching() || !g_.leaving.all_here) return;
  if (op.flow.late) return;  // this rank could not receive it, or its socket was full
  for (uint32_t stream = 0; stream < op.receivers.size(); stream++) {
    if (op.own.stream == stream) continue;
    const Member root = op.member_of(stream);
    if (!reachability_.on_stream(root, op.post.sequence, op.plan.chunks,
                                 op.receivers[stream].heard_live()))
      continue;
    return tell_top(kUnheard,
                    "rank " + std::to_string(g_.self) + " no longer hears the multicast of rank " +
                        std::to_string(root),
                    now);
  }
}

void PathSwitch::on_flood(const std::string& why, Nanos now) {
  if (g_.params.multicast.required || !g_.leaving.all_here) return;
  flood_.believe();
  if (g_.path.on_ring()) return check_ ? void() : flood_.on_path(true, now);
  if (g_.state == GroupState::kOpen && !check_) tell_top(kFlooded, why, now);
}

void PathSwitch::tell_top(uint32_t what, const std::string& why, Nanos now) {
  if (g_.tree.is_top(g_.self)) return doubt(what, why, now);
  wire::Writer body;
  body.put_text(why);
  g_.send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kDeaf, 0, what, body.bytes());
}

// Top member only. Several members report the same fault; the first report counts.
void PathSwitch::doubt(uint32_t what, const std::string& why, Nanos now) {
  if (g_.path.on_ring() || check_ || g_.state != GroupState::kOpen) return;
  if (what == kUnheard) return now < doubts_from_ ? void() : start_check(now, why);
  if (g_.params.multicast.required) return;
  check_later(now);
  begin(true, why, now);
}

void PathSwitch::begin(bool to_ring, const std::string& why, Nanos now) {
  if (to_ring && g_.params.multicast.required) {
    g_.fail(Status(Code::kUnavailable, why + "; MCAST_ALGORITHM=multicast forbids the ring"),
            kNoMember);
    return;
  }
  stop_starting(to_ring, why, now);
}

void PathSwitch::stop_starting(bool to_ring, const std::string& why, Nanos now) {
  to_ring_ = to_ring;
  reason_ = why;
  wire::Writer body;
  body.put_text(why);
  if (const auto first = cutover_.stop(to_ring ? 0 : 1, body.bytes(), {})) change(*first, now);
}

// The path stays the same; operations behind the cut-over wait for a test of rates.
void PathSwitch::draw_for_rates(Nanos now) {
  rates_.begin();
  if (const auto first = cutover_.stop(kForRates, {}, {})) change(*first, now);
}

void PathSwitch::change(Sequence first, Nanos now) {
  if (rates_.waits_for_cutover()) return rates_.on_cutover(first);
  std::erase_if(g_.path.turns, [first](const GroupPath::Turn& t) { return t.from >= first; });
  g_.path.turns.push_back({first, to_ring_});
  g_.path.reason = "switched at operation " + std::to_string(first) + ": " + reason_;
  g_.counters.add(Counter::path_switches);
  doubts_from_ = 0;
  to_ring_ ? g_.port.reach_lost() : g_.port.reach_proven(now);
  rates_.on_change(to_ring_);
  flood_.on_path(to_ring_, now);
  if (g_.tree.is_top(g_.self)) {
    log(LogLevel::kWarn, "group '%s' continues with %s: %s", g_.params.name.c_str(),
        to_ring_ ? "the unicast ring" : "multicast", g_.path.reason.c_str());
  }
  if (on_change_) on_change_(to_ring_ ? "ring" : "multicast", g_.path.reason);
}

void PathSwitch::on_switch_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  if (!g_.leaving.all_here) return g_.counters.add(Counter::stale);
  const bool from_parent = g_.from_parent(header.member);
  const std::string text(wire::Reader(body).rest_text().substr(0, 300));
  if (header.type == FrameType::kDeaf && g_.tree.is_top(g_.self) && header.argument <= kFlooded) {
    doubt(header.argument, text, now);
  } else if (header.type == FrameType::kSwitch && from_parent && header.argument <= kForRates) {
    if (g_.switching()) return;
    if (header.argument == kForRates) return draw_for_rates(now);
    stop_starting(header.argument == 0, text, now);
  } else if (header.type == FrameType::kSwitchReady) {
    if (const auto first = cutover_.on_ready(header)) change(*first, now);
  } else if (header.type == FrameType::kSwitchAt) {
    if (const auto first = cutover_.on_at(header)) change(*first, now);
  } else {
    g_.counters.add(Counter::malformed);
  }
}

}  // namespace mcast
