// The reach probe on the control tree (protocol/probe.h), up to the decision whether the group
// multicasts. A member that joins pings those it watches, once: whoever is there answers, whoever
// joins later pings in turn. So each learns who is there, says nothing more to others before, and
// judges nobody's silence before.
#include "collective/group_core.h"

namespace mcast {

namespace {
// Arguments of ProbeJoined besides ReachProbe::Reach, and of ProbeStart.
constexpr uint32_t kNotYet = 3;
constexpr uint32_t kWait = 0, kGo = 1;
}  // namespace

ReachProbe::Params GroupCore::probe_params() const {
  ReachProbe::Params probe;
  probe.self = self_;
  probe.members = size_;
  probe.children = tree_.children(self_);
  probe.timeout = params_.probe_timeout;
  probe.bytes = wire::kDatagramHeader + params_.agreed.chunk;
  return probe;
}

void GroupCore::start_probe(Nanos now, std::function<void(const Status&)> ready) {
  if (failed()) {
    ready(failure_);
    return;
  }
  if (size_ == 1) {
    ready({});
    return;
  }
  ready_ = std::move(ready);
  for (uint32_t m = 0; m < size_; m++) {
    if (!gone_[m].ok()) return fail(Status(gone_[m]), static_cast<Member>(m), now);
  }
  ReachProbe::Params probe = probe_params();
  if (!params_.multicast_problem.empty()) {
    probe.reach = ReachProbe::Reach::kNone;
    probe.why = "rank " + std::to_string(self_) + ": " + params_.multicast_problem;
  } else if (!params_.try_multicast || (!params_.require_multicast && port_.reach_known(now))) {
    probe.reach = ReachProbe::Reach::kKnown;
  }
  probe_.emplace(std::move(probe), now);
  liveness_.await_first_words();
  for (const Member m : liveness_.watched()) {
    counters_.add(Counter::pings_sent);
    send_frame(m, Channel::kControl, wire::FrameType::kPing, ops_.base(), 0);
  }
}

void GroupCore::drive_probe(Nanos now) {
  if (probe_->joining()) return drive_joining(now);
  if (probe_->send_due(now)) {
    // Full size, so that a path whose MTU is smaller than claimed is found out here.
    const std::vector<std::byte> padding(params_.agreed.chunk);
    if (send_datagram(wire::DatagramType::kProbe, 0, 0, 0, padding)) {
      counters_.add(Counter::probes_sent);
    }
  }
  bool ok = false;
  std::string why;
  if (!probe_->verdict(now, ok, why)) return;
  if (tree_.is_top(self_)) return on_probe_done(ok, ok ? "the probe reached every rank" : why, now);
  wire::Writer body;
  body.put_text(why);
  send_frame(tree_.parent(self_), Channel::kControl, wire::FrameType::kProbeStatus, 0, ok ? 1 : 0,
             body.bytes());
}

void GroupCore::drive_joining(Nanos now) {
  const bool top = tree_.is_top(self_);
  const std::string above = top ? "" : absent_parent();
  std::string text;
  ReachProbe::Reach reach;
  uint32_t argument = kNotYet;
  if (above.empty() && probe_->joined(reach, text)) {
    if (top) return all_joined(reach, text, now);
    argument = static_cast<uint32_t>(reach);
  } else if (probe_->news(now, above, first_child(), child_met(), text)) {
    if (top || !above.empty()) return pass_start(kWait, text);
  } else {
    return;
  }
  wire::Writer body;
  body.put_text(text);
  send_frame(tree_.parent(self_), Channel::kControl, wire::FrameType::kProbeJoined, 0, argument,
             body.bytes());
}

void GroupCore::all_joined(ReachProbe::Reach reach, const std::string& why, Nanos now) {
  if (reach == ReachProbe::Reach::kNone) return on_probe_done(false, why, now);
  if (!params_.try_multicast) return on_probe_done(false, "set by MCAST_ALGORITHM", now);
  if (reach == ReachProbe::Reach::kKnown) {
    return on_probe_done(true, "the probe of another group reached every rank", now);
  }
  pass_start(kGo, "");
  liveness_.all_met(now);
  probe_->start(now);
}

void GroupCore::pass_start(uint32_t argument, const std::string& text) {
  if (argument == kWait) missing_ = text;
  wire::Writer body;
  body.put_text(text);
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    const auto child = static_cast<Member>(first_child() + c);
    // Who joins later hears the next news; it must not find old ones in a heap.
    if (argument == kWait && !liveness_.met(child)) continue;
    send_frame(child, Channel::kControl, wire::FrameType::kProbeStart, 0, argument, body.bytes());
  }
}

std::string GroupCore::probe_text() const {
  if (!probe_) return "";
  if (probe_->joining() && !missing_.empty()) return missing_;
  const std::string open = probe_->open_text(first_child(), child_met());
  if (!open.empty() || tree_.is_top(self_)) return open;
  const std::string above = absent_parent();
  if (!above.empty()) return above;
  return "rank " + std::to_string(tree_.parent(self_)) + " has not passed on the decision";
}

std::string GroupCore::absent_parent() const {
  const Member parent = tree_.parent(self_);
  return liveness_.met(parent) ? "" : "rank(s) " + std::to_string(parent) + " have not joined";
}

ReachProbe::Here GroupCore::child_met() const {
  return [this](uint32_t c) { return liveness_.met(static_cast<Member>(first_child() + c)); };
}

void GroupCore::on_probe_frame(const Frame& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  if (header.sequence != 0) return on_check_frame(header, body, now);
  const bool up = header.type == FrameType::kProbeJoined || header.type == FrameType::kProbeStatus;
  const bool known = up ? tree_.is_child(header.member, self_)
                        : !tree_.is_top(self_) && header.member == tree_.parent(self_);
  if (!known || header.argument > kNotYet) {
    counters_.add(Counter::malformed);
    return;
  }
  if (!probe_) return;
  const std::string text(wire::Reader(body).rest_text());
  if (header.type == FrameType::kProbeDone) return on_probe_done(header.argument == 1, text, now);
  if (header.type == FrameType::kProbeStart) {
    pass_start(header.argument, text);
    if (header.argument != kGo) return;
    liveness_.all_met(now);
    probe_->start(now);
    return;
  }
  const uint32_t child = tree_.child_index(header.member);
  if (header.type == FrameType::kProbeStatus) {
    probe_->on_status(child, header.argument == 1, text);
  } else if (header.argument == kNotYet) {
    probe_->on_missing(child, text);
  } else {
    probe_->on_joined(child, static_cast<ReachProbe::Reach>(header.argument), text);
  }
}

void GroupCore::on_probe_done(bool multicast, const std::string& why, Nanos now) {
  wire::Writer body;
  body.put_text(why);
  for (uint32_t c = 0; c < tree_.children(self_); c++) {
    send_frame(static_cast<Member>(first_child() + c), Channel::kControl,
               wire::FrameType::kProbeDone, 0, multicast ? 1 : 0, body.bytes());
  }
  liveness_.all_met(now);
  if (multicast && !probe_->joining()) port_.reach_proven(now);
  if (!multicast && params_.try_multicast) port_.reach_lost();
  probe_.reset();
  path_ = multicast ? Path::kMulticast : Path::kRing;
  path_reason_ = why;
  auto ready = std::exchange(ready_, nullptr);
  if (!multicast && params_.require_multicast) {
    fail(Status(Code::kUnavailable, "multicast does not reach all ranks: " + why +
                                        "; set MCAST_ALGORITHM=auto to use the ring instead"),
         kNoMember, now);
    if (ready) ready(failure_);
    return;
  }
  if (ready) ready({});
}

}  // namespace mcast
