// Whether multicast reaches everybody, asked again in the middle of a group's life. A member that
// takes another for unheard may be wrong (it was stopped, its socket was full), and a path that
// died may live again: so nothing is changed on suspicion. The top starts a round of the reach
// probe, on the control tree like the first one but without joining; all multicast, each reports
// for its subtree, the top decides. Rounds are numbered, so that late words of one round are not
// taken for the next. On the ring the top asks again by itself, ever more rarely, while there is
// something to do.
#include <algorithm>

#include "collective/group_core.h"

namespace mcast {
namespace {
constexpr Nanos kFirstCheck = 5 * kSecond;  // from the change to the ring; doubles
constexpr Nanos kLastCheck = 600 * kSecond;
constexpr uint32_t kGo = 1;
}  // namespace

bool GroupCore::by_ring(Sequence sequence) const {
  bool ring = path_ == Path::kRing;
  for (const PathTurn& turn : turns_) {
    if (sequence < turn.from) break;
    ring = turn.ring;
  }
  return ring;
}

// When the top looks next whether the ring is still needed.
void GroupCore::check_later(Nanos now) {
  check_wait_ = check_wait_ == 0 ? kFirstCheck : std::min(2 * check_wait_, kLastCheck);
  next_check_ = now + check_wait_;
}

// At the top, with every turn of a group that has something to do.
void GroupCore::drive_path(Nanos now) {
  if (check_) return drive_check(now);
  if (!tree_.is_top(self_) || !on_ring() || !params_.try_multicast || frozen_ || probe_) return;
  if (next_check_ == kNever) check_later(now);
  if (now >= next_check_) start_check(now, "");
}

void GroupCore::start_check(Nanos now, const std::string& why) {
  if (check_ || frozen_) return;
  suspicion_of_path_ = why;
  begin_round(round_ + 1, now);
}

void GroupCore::begin_round(uint32_t round, Nanos now) {
  round_ = round;
  counters_.add(Counter::path_checks);
  check_.emplace(probe_params(), now);
  check_->start(now);
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(first_child() + c), Channel::kControl,
               wire::FrameType::kProbeStart, round_, kGo);
  }
}

void GroupCore::drive_check(Nanos now) {
  if (params_.multicast_problem.empty() && check_->send_due(now)) {
    const std::vector<std::byte> padding(params_.agreed.chunk);
    if (send_datagram(wire::DatagramType::kProbe, round_, 0, 0, padding)) {
      counters_.add(Counter::probes_sent);
    }
  }
  bool ok = false;
  std::string why;
  if (!check_->verdict(now, ok, why)) return;
  if (!params_.multicast_problem.empty()) {
    ok = false;
    why = "rank " + std::to_string(self_) + ": " + params_.multicast_problem;
  }
  if (tree_.is_top(self_)) return end_round(ok, why, now);
  wire::Writer body;
  body.put_text(why);
  send_frame(tree_.parent(self_), Channel::kControl, wire::FrameType::kProbeStatus, round_,
             ok ? 1 : 0, body.bytes());
}

// Everybody stops probing; the top changes the path if it is not the right one.
void GroupCore::end_round(bool heard, const std::string& why, Nanos now) {
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(first_child() + c), Channel::kControl,
               wire::FrameType::kProbeDone, round_, heard ? 1 : 0);
  }
  check_.reset();
  if (!tree_.is_top(self_)) return;
  if (on_ring()) {
    if (heard) return begin_switch(false, "multicast reaches every rank again", now);
    return check_later(now);
  }
  if (heard) return;
  check_later(now);
  begin_switch(true, suspicion_of_path_ + " (" + why + ")", now);
}

void GroupCore::on_check_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  const bool up = header.type == FrameType::kProbeStatus;
  const bool known = up ? tree_.is_child(header.member, self_)
                        : !tree_.is_top(self_) && header.member == tree_.parent(self_);
  if (!known || header.type == FrameType::kProbeJoined || header.argument > 1) {
    counters_.add(Counter::malformed);
    return;
  }
  if (header.type == FrameType::kProbeStart) {
    if (header.sequence > round_) begin_round(header.sequence, now);
  } else if (check_ && header.sequence == round_) {
    if (up) {
      check_->on_status(tree_.child_index(header.member), header.argument == 1,
                        std::string(wire::Reader(body).rest_text()));
    } else {
      end_round(header.argument == 1, "", now);
    }
  }
}

}  // namespace mcast
