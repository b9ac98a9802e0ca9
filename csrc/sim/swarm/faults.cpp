// Faults that end are counted if they may overlap at one rank: a process runs again when the last
// of its pauses has ended.
#include "sim/swarm/faults.h"

#include <algorithm>
#include <utility>

#include "sim/network/flows.h"
#include "wire/datagram.h"
#include "wire/frame.h"
#include "wire/guarded_datagram.h"

namespace mcast::sim {

namespace {

// The lane of a rank's i-th endpoint (World::endpoints).
uint32_t lane_of_endpoint(size_t i) { return i == 1 ? 1 : 0; }

// Returns true for faults of packets or frames and for actions of a program: they are counted when
// they take effect, not when they begin.
bool counts_what_it_does(FaultKind kind) {
  return kind == FaultKind::kReplay || kind == FaultKind::kFlood || kind == FaultKind::kExit ||
         kind == FaultKind::kAbsent || kind == FaultKind::kAggRepeat;
}

}  // namespace

Faults::Faults(const Plan& plan, World& world, Events events)
    : plan_(plan),
      world_(world),
      events_(std::move(events)),
      rng_(mix64(plan.world.seed ^ 0x6661756c74ULL)),
      paused_(plan.ranks(), 0),
      isolated_(plan.ranks(), 0) {}

void Faults::begin() {
  for (size_t i = 0; i < plan_.faults.size(); i++) {
    world_.at(plan_.faults[i].at, [this, i] { start(i); });
    if (plan_.faults[i].end() != kNever) world_.at(plan_.faults[i].end(), [this, i] { stop(i); });
  }
}

void Faults::start(size_t index) {
  const PlannedFault& fault = plan_.faults[index];
  active_.push_back(index);
  began_[static_cast<size_t>(fault.what)] += counts_what_it_does(fault.what) ? 0 : 1;
  switch (fault.what) {
    case FaultKind::kPause:
      pause(fault.rank, 1);
      if (fault.length == kNever) events_.lost(fault.rank);
      return;
    case FaultKind::kKill:
      world_.kill(fault.rank);
      return events_.lost(fault.rank);
    case FaultKind::kIsolate:
      return isolate(fault.rank, 1);
    case FaultKind::kCut:
      give_up(index);
      return flap(index, true);
    case FaultKind::kMute:
      return flap(index, true);
    case FaultKind::kReset:
      return reset(fault, fault.much);
    case FaultKind::kJump:
      if (!world_.killed(fault.rank)) world_.jump(fault.rank, fault.much);
      return;
    case FaultKind::kFlood:
      return flood(index);
    case FaultKind::kAbort:
    case FaultKind::kClose:
    case FaultKind::kExit:
      return events_.call(fault);
    case FaultKind::kAggRepeat:
      return hook_frames();
    default:
      return is_of_aggregator(fault.what) ? of_aggregator(fault, true) : apply();
  }
}

void Faults::of_aggregator(const PlannedFault& fault, bool on) {
  Aggregators& all = world_.aggregators();
  switch (fault.what) {
    case FaultKind::kAggKill:
      return on ? all.kill(fault.aggregator) : all.start(fault.aggregator);
    case FaultKind::kAggEnd:
      return on ? all.end(fault.aggregator, fault.much) : all.start(fault.aggregator);
    case FaultKind::kAggPause:
      return all.pause(fault.aggregator, on);
    default:
      return all.isolate(fault.aggregator, on);
  }
}

void Faults::stop(size_t index) {
  const PlannedFault& fault = plan_.faults[index];
  if (std::erase(active_, index) == 0) return;
  switch (fault.what) {
    case FaultKind::kPause:
      return pause(fault.rank, -1);
    case FaultKind::kIsolate:
      return isolate(fault.rank, -1);
    case FaultKind::kMute:
      return mute(fault, false);
    case FaultKind::kCut:
      return cut(index, false);
    case FaultKind::kAggRepeat:
      return hook_frames();
    default:
      return is_of_aggregator(fault.what) ? of_aggregator(fault, false) : apply();
  }
}

void Faults::pause(uint32_t rank, int change) {
  paused_[rank] += change;
  world_.pause(rank, paused_[rank] > 0);
  if (paused_[rank] == 0) events_.resumed(rank);
}

void Faults::isolate(uint32_t rank, int change) {
  isolated_[rank] += change;
  world_.aggregators().isolate_rank(rank, isolated_[rank] > 0);
  for (const size_t endpoint : world_.endpoints(rank)) {
    if (isolated_[rank] > 0) {
      world_.network().isolate(endpoint);
    } else {
      world_.network().heal(endpoint);
    }
  }
}

void Faults::mute(const PlannedFault& fault, bool on) {
  for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
    if (fault.rank != kNoMember && rank != fault.rank) continue;
    const std::vector<size_t> from = world_.endpoints(rank);
    const std::vector<size_t> to = world_.endpoints(fault.peer == kNoMember ? rank : fault.peer);
    for (size_t i = 0; i < from.size(); i++) {
      world_.network().block_multicast(from[i], fault.peer == kNoMember ? SIZE_MAX : to[i], on);
    }
  }
}

// Includes streams between ranks of one host, which are connections like others.
template <typename Act>
void Faults::each_stream(const PlannedFault& fault, Act act) {
  for (uint32_t peer = 0; peer < plan_.ranks(); peer++) {
    if (peer == fault.rank || (fault.peer != kNoMember && peer != fault.peer)) continue;
    const std::vector<size_t> from = world_.endpoints(fault.rank), to = world_.endpoints(peer);
    for (size_t i = 0; i < from.size(); i++) {
      if (fault.lane == kNoMember || fault.lane == lane_of_endpoint(i)) act(from[i], to[i]);
    }
  }
}

void Faults::cut(size_t index, bool on) {
  if (on ? !cutting_.insert(index).second : cutting_.erase(index) == 0) return;
  each_stream(plan_.faults[index], [&](size_t from, size_t to) {
    int& times = cuts_[std::minmax(from, to)];
    const bool before = times > 0;
    times += on ? 1 : -1;
    if (before != (times > 0)) world_.network().cut_streams(from, to, on);
  });
}

void Faults::reset(const PlannedFault& fault, Nanos later) {
  each_stream(fault, [&](size_t from, size_t to) { world_.network().reset(from, to, later); });
}

// TCP breaks a connection on which nothing has arrived for the liveness limit, even an idle one
// (TCP_USER_TIMEOUT, SO_KEEPALIVE; transport/udp/tcp_connection.cpp). Its clock is the host's.
void Faults::give_up(size_t index) {
  const PlannedFault& fault = plan_.faults[index];
  const Nanos limit = world_.spec().config.liveness_limit;
  if (fault.every > 0 || fault.length <= limit) return;
  world_.at(world_.now() + limit, [this, index, &fault] {
    if (std::find(active_.begin(), active_.end(), index) == active_.end()) return;
    reset(fault, 0);
  });
}

void Faults::flap(size_t index, bool on) {
  if (std::find(active_.begin(), active_.end(), index) == active_.end()) return;
  const PlannedFault& fault = plan_.faults[index];
  fault.what == FaultKind::kCut ? cut(index, on) : mute(fault, on);
  if (fault.every > 0 && fault.length != kNever) {
    world_.at(world_.now() + fault.every, [this, index, on] { flap(index, !on); });
  }
}

const PlannedFault* Faults::in_force(FaultKind kind) const {
  const auto last = std::find_if(active_.rbegin(), active_.rend(),
                                 [&](size_t i) { return plan_.faults[i].what == kind; });
  return last == active_.rend() ? nullptr : &plan_.faults[*last];
}

void Faults::apply() {
  static const PlannedFault nothing;
  const auto now = [&](FaultKind kind) -> const PlannedFault& {
    const PlannedFault* const fault = in_force(kind);
    return fault != nullptr ? *fault : nothing;
  };
  SimNetwork& network = world_.network();
  SimFaults& f = network.faults();
  f.drop = now(FaultKind::kDrop).rate;
  f.burst = now(FaultKind::kDrop).burst;
  f.duplicate = now(FaultKind::kDuplicate).rate;
  f.copies = static_cast<int>(now(FaultKind::kDuplicate).burst);
  f.copy_delay = now(FaultKind::kDuplicate).much;
  f.reorder = now(FaultKind::kReorder).rate;
  f.reorder_delay = now(FaultKind::kReorder).much;
  f.corrupt = now(FaultKind::kCorrupt).rate;
  f.refuse = now(FaultKind::kRefuse).rate;
  const PlannedFault& loss = now(FaultKind::kLoss);
  Fabric& fabric = network.fabric();
  for (LinkId id = 0; id < fabric.topology().links(); id++) {
    fabric.set_loss(id, loss.rate, loss.burst);
  }
  if (std::any_of(plan_.faults.begin(), plan_.faults.end(),
                  [](const auto& one) { return one.what == FaultKind::kDelay; })) {
    delay_links();
  }
  hook_frames();
  if (in_force(FaultKind::kReplay) == nullptr) return network.set_datagram_hook({});
  network.set_datagram_hook(
      [this](size_t from, size_t to, ConstBytes d) { return replay(from, to, d); });
}

// Sets the delay of the links between a host and its switch, in each direction; delays of
// simultaneous faults add up.
void Faults::delay_links() {
  Fabric& fabric = world_.network().fabric();
  for (LinkId id = 0; id < fabric.topology().links(); id++) {
    const Link& link = fabric.topology().link(id);
    Nanos extra = 0;
    for (const size_t i : active_) {
      const PlannedFault& fault = plan_.faults[i];
      if (fault.what != FaultKind::kDelay) continue;
      const bool here = fault.rank == kNoMember ||
                        (link.level == 1 && link.child == fault.rank / plan_.world.ranks);
      extra += here ? fault.much : 0;
    }
    fabric.port(id).set_extra_delay(static_cast<double>(extra));
  }
}

// Floods everything that a rank has joined: a flood does not distinguish lanes.
void Faults::flood(size_t index) {
  if (std::find(active_.begin(), active_.end(), index) == active_.end()) return;
  const PlannedFault& fault = plan_.faults[index];
  for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
    if ((fault.rank != kNoMember && rank != fault.rank) || world_.killed(rank)) continue;
    const std::vector<size_t> to = world_.endpoints(rank);
    for (size_t i = 0; i < to.size(); i++) {
      if (fault.lane != kNoMember && fault.lane != lane_of_endpoint(i)) continue;
      for (double sent = 0; sent < fault.burst; sent++) {
        began_[static_cast<size_t>(FaultKind::kFlood)] += world_.network().flood(to[i], noise());
      }
    }
  }
  world_.at(world_.now() + fault.every, [this, index] { flood(index); });
}

// A datagram of another job that uses the same address, or random bytes.
std::vector<std::byte> Faults::noise() {
  std::vector<std::byte> datagram(wire::kDatagramHeader + 8, std::byte{0x5a});
  if (rng_.chance(0.5)) return datagram;
  wire::DatagramHeader header;
  header.group_tag = rng_.next();
  wire::write_datagram(datagram, header, Bytes(datagram).subspan(wire::kDatagramHeader));
  return datagram;
}

void Faults::hook_frames() {
  if (in_force(FaultKind::kForget) == nullptr && in_force(FaultKind::kAggRepeat) == nullptr) {
    return world_.network().set_frame_hook({});
  }
  world_.network().set_frame_hook(
      [this](size_t from, size_t to, Channel channel, ConstBytes frame) {
        if (forgets(frame)) return false;
        repeat(from, to, channel, frame);
        return true;
      });
}

// Sends the frame twice on the same stream, one directly after the other.
void Faults::repeat(size_t from, size_t to, Channel channel, ConstBytes frame) {
  const PlannedFault* const fault = in_force(FaultKind::kAggRepeat);
  wire::FrameHeader header;
  if (fault == nullptr || repeating_ || !wire::parse_frame(frame, header)) return;
  if (header.type != wire::FrameType::kAggOpen && header.type != wire::FrameType::kReduceData) {
    return;
  }
  if (world_.aggregators().at(to) != fault->aggregator || !rng_.chance(fault->rate)) return;
  const ConstBytes parts[] = {frame};
  repeating_ = true;
  world_.endpoint(from).stream().send(static_cast<PeerId>(to), channel, parts);
  repeating_ = false;
  began_[static_cast<size_t>(FaultKind::kAggRepeat)]++;
}

// Only requests are lost: they are repeated until they are answered.
bool Faults::forgets(ConstBytes frame) {
  const PlannedFault* const fault = in_force(FaultKind::kForget);
  wire::FrameHeader header;
  if (fault == nullptr || !wire::parse_frame(frame, header)) return false;
  const bool request =
      header.type == wire::FrameType::kFetch || header.type == wire::FrameType::kEarlyFetch;
  return request && rng_.chance(fault->rate);
}

// A late copy: either unchanged, as from a switch that delayed it, or of an earlier group over the
// same hosts, well formed except for its tag.
SimNetwork::Verdict Faults::replay(size_t from, size_t to, ConstBytes datagram) {
  const PlannedFault* const fault = in_force(FaultKind::kReplay);
  if (fault == nullptr || from == to || !rng_.chance(fault->rate)) {
    return SimNetwork::Verdict::kPass;
  }
  std::vector<std::byte> copy(datagram.begin(), datagram.end());
  wire::DatagramHeader header;
  wire::GuardedHeader guarded;
  constexpr uint64_t kForeign = 0x8000000000000000ULL;
  if (!rng_.chance(0.5)) {
    // Sent unchanged.
  } else if (wire::parse_datagram(copy, header) == wire::ParseError::kNone) {
    header.group_tag ^= kForeign;
    wire::write_datagram(copy, header, Bytes(copy).subspan(wire::kDatagramHeader));
  } else if (wire::parse_guarded(copy, guarded) == wire::ParseError::kNone) {
    guarded.inner.group_tag ^= kForeign;
    wire::write_guarded(copy.data(), guarded);
  }
  const auto again = static_cast<Nanos>(rng_.below(static_cast<uint64_t>(fault->much) + 1));
  world_.at(world_.now() + again, [this, to, kept = std::move(copy)] {
    if (world_.killed(world_.rank_at(to))) return;
    began_[static_cast<size_t>(FaultKind::kReplay)]++;
    world_.network().inject(to, kept);
  });
  return SimNetwork::Verdict::kPass;
}

void Faults::kill_the_lost() {
  for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
    if (paused_[rank] > 0 || isolated_[rank] > 0) world_.kill(rank);
  }
}

void Faults::end() {
  for (const size_t index : std::vector<size_t>(active_)) {
    const FaultKind kind = plan_.faults[index].what;
    // Aggregators that have ended do not come back.
    const bool gone = kind == FaultKind::kAggKill || kind == FaultKind::kAggEnd;
    if ((kind >= FaultKind::kDrop && !gone) || kind == FaultKind::kMute) stop(index);
  }
}

std::array<uint64_t, kFaultKinds> Faults::happened() const {
  std::array<uint64_t, kFaultKinds> all = began_;
  const SimNetwork::Totals& totals = world_.network().totals();
  const Fabric& fabric = world_.network().fabric();
  const auto set = [&](FaultKind kind, uint64_t count) { all[static_cast<size_t>(kind)] = count; };
  set(FaultKind::kMute, totals.blocked);
  set(FaultKind::kDrop, totals.lost);
  set(FaultKind::kDuplicate, totals.duplicated);
  set(FaultKind::kReorder, totals.reordered);
  set(FaultKind::kCorrupt, totals.corrupted);
  set(FaultKind::kRefuse, totals.refused);
  set(FaultKind::kForget, totals.hooked);
  set(FaultKind::kCut, static_cast<const Flows&>(world_.network().streams()).totals().cut);
  uint64_t lost = 0, delayed = 0;
  for (LinkId id = 0; id < fabric.topology().links(); id++) {
    lost += fabric.traffic()[id].lost_fault;
    delayed += fabric.port(id).delayed();
  }
  set(FaultKind::kLoss, lost);
  set(FaultKind::kDelay, delayed);
  return all;
}

}  // namespace mcast::sim
