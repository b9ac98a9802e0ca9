// The reach probe on the control tree (protocol/probe.h), up to the decision whether the group uses
// multicast. A member that joins pings the members it watches, once. Members that are there reply;
// those that join later send their own pings. So each member learns who is there, sends nothing
// else to a member before, and counts nobody's silence before.
#include "collective/path_probe.h"

#include <utility>

#include "base/errors.h"

namespace mcast {
namespace {

// Arguments of ProbeJoined besides ReachProbe::Reach, and of ProbeStart.
constexpr uint32_t kNotYet = 3;
constexpr uint32_t kWait = 0, kGo = 1;

}  // namespace

ReachProbe::Params probe_params(const GroupContext& g) {
  ReachProbe::Params probe;
  probe.self = g.self;
  probe.members = g.size;
  probe.children = g.tree.children(g.self);
  probe.timeout = g.params.probe_timeout;
  probe.bytes = wire::kDatagramHeader + g.params.agreed.chunk;
  probe.headers = g.params.multicast.headers;
  return probe;
}

void send_probes(GroupContext& g, const ReachProbe& probe, Sequence round) {
  const auto send = [&g, round](ConstBytes padding) {
    if (g.send_datagram(wire::DatagramType::kProbe, round, 0, 0, padding)) {
      g.counters.add(Counter::probes_sent);
    }
  };
  // The small probe is sent first: behind the other it could become the end of a super-packet,
  // which virtual links carry whatever their MTU.
  if (probe.small_due()) send({});
  // Full size, so that a path whose MTU is smaller than claimed is detected here.
  send(std::vector<std::byte>(g.params.agreed.chunk));
}

void PathProbe::start(Nanos now, std::function<void(const Status&)> ready) {
  if (g_.failed()) {
    ready(g_.failure());
    return;
  }
  if (g_.size == 1) {
    ready({});
    return;
  }
  ready_ = std::move(ready);
  for (uint32_t m = 0; m < g_.size; m++) {
    if (!g_.gone[m].ok()) return g_.fail(Status(g_.gone[m]), static_cast<Member>(m));
  }
  ReachProbe::Params probe = probe_params(g_);
  if (!g_.params.multicast.problem.empty()) {
    probe.reach = ReachProbe::Reach::kNone;
    probe.why = "rank " + std::to_string(g_.self) + ": " + g_.params.multicast.problem;
  } else if (!g_.params.multicast.wanted ||
             (!g_.params.multicast.required && g_.port.reach_known(now))) {
    probe.reach = ReachProbe::Reach::kKnown;
  }
  g_.state = GroupState::kProbing;
  probe_.emplace(std::move(probe), now);
  membership_.greet();
}

void PathProbe::drive(Nanos now) {
  if (!probe_) return;
  if (probe_->joining()) return drive_joining(now);
  if (probe_->send_due(now)) send_probes(g_, *probe_, 0);
  bool ok = false;
  std::string why;
  if (!probe_->verdict(now, ok, why)) return;
  if (g_.tree.is_top(g_.self)) return decide(ok, ok ? "the probe reached every rank" : why, now);
  wire::Writer body;
  body.put_text(why);
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kProbeStatus, 0,
                ok ? 1 : 0, body.bytes());
}

void PathProbe::drive_joining(Nanos now) {
  const bool top = g_.tree.is_top(g_.self);
  const std::string above = top ? "" : absent_parent();
  std::string text;
  ReachProbe::Reach reach;
  uint32_t argument = kNotYet;
  if (above.empty() && probe_->joined(reach, text)) {
    if (top) return all_joined(reach, text, now);
    argument = static_cast<uint32_t>(reach);
  } else if (probe_->news(now, above, g_.first_child(), child_met(), text)) {
    if (top || !above.empty()) return pass_start(kWait, text);
  } else {
    return;
  }
  wire::Writer body;
  body.put_text(text);
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kProbeJoined, 0,
                argument, body.bytes());
}

void PathProbe::all_joined(ReachProbe::Reach reach, const std::string& why, Nanos now) {
  if (reach == ReachProbe::Reach::kNone) {
    g_.path.no_multicast = true;
    return decide(false, why, now);
  }
  if (!g_.params.multicast.wanted) return decide(false, "set by MCAST_ALGORITHM", now);
  if (reach == ReachProbe::Reach::kKnown) {
    return decide(true, "the probe of another group reached every rank", now);
  }
  pass_start(kGo, "");
  membership_.all_met(now);
  probe_->start(now);
}

void PathProbe::pass_start(uint32_t argument, const std::string& text) {
  if (argument == kWait) missing_ = text;
  wire::Writer body;
  body.put_text(text);
  for (uint32_t c = 0; c < g_.tree.children(g_.self); c++) {
    const auto child = static_cast<Member>(g_.first_child() + c);
    // A member that joins later receives the next news. It must not get a burst of old ones.
    if (argument == kWait && !membership_.met(child)) continue;
    g_.send_frame(child, Channel::kControl, wire::FrameType::kProbeStart, 0, argument,
                  body.bytes());
  }
}

void PathProbe::give_up(const Status& why) {
  probe_.reset();
  if (auto ready = std::exchange(ready_, nullptr)) ready(why);
}

std::string PathProbe::text() const {
  if (!probe_) return "";
  if (probe_->joining() && !missing_.empty()) return missing_;
  const std::string open = probe_->open_text(g_.first_child(), child_met());
  if (!open.empty() || g_.tree.is_top(g_.self)) return open;
  const std::string above = absent_parent();
  if (!above.empty()) return above;
  return "rank " + std::to_string(g_.tree.parent(g_.self)) + " has not passed on the decision";
}

std::string PathProbe::absent_parent() const {
  const Member parent = g_.tree.parent(g_.self);
  return membership_.met(parent) ? "" : "rank(s) " + std::to_string(parent) + " have not joined";
}

ReachProbe::Here PathProbe::child_met() const {
  return [this](uint32_t c) { return membership_.met(static_cast<Member>(g_.first_child() + c)); };
}

void PathProbe::on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  const bool up = header.type == FrameType::kProbeJoined || header.type == FrameType::kProbeStatus;
  const bool known = up ? g_.tree.is_child(header.member, g_.self) : g_.from_parent(header.member);
  if (!known || header.argument > kNotYet) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (!probe_) return;
  const std::string text(wire::Reader(body).rest_text());
  if (header.type == FrameType::kProbeDone) return decide(header.argument == 1, text, now);
  if (header.type == FrameType::kProbeStart) {
    pass_start(header.argument, text);
    if (header.argument != kGo) return;
    membership_.all_met(now);
    probe_->start(now);
    return;
  }
  const uint32_t child = g_.tree.child_index(header.member);
  if (header.type == FrameType::kProbeStatus) {
    probe_->on_status(child, header.argument == 1, text);
  } else if (header.argument == kNotYet) {
    probe_->on_missing(child, text);
  } else {
    probe_->on_joined(child, static_cast<ReachProbe::Reach>(header.argument), text);
  }
}

void PathProbe::decide(bool multicast, const std::string& why, Nanos now) {
  wire::Writer body;
  body.put_text(why);
  g_.send_to_children(wire::FrameType::kProbeDone, 0, multicast ? 1 : 0, body.bytes());
  membership_.all_met(now);
  if (multicast && !probe_->joining()) g_.port.reach_proven(now);
  if (!multicast && g_.params.multicast.wanted) g_.port.reach_lost();
  probe_.reset();
  g_.state = GroupState::kOpen;
  g_.path.first = multicast ? Path::kMulticast : Path::kRing;
  g_.path.reason = why;
  auto ready = std::exchange(ready_, nullptr);
  if (!multicast && g_.params.multicast.required) {
    g_.fail(Status(Code::kUnavailable,
                   error_text<ErrorId::multicast_unreachable>(why) + " to use the ring instead"),
            kNoMember);
    if (ready) ready(g_.failure());
    return;
  }
  if (ready) ready({});
}

}  // namespace mcast
