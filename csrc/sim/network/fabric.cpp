// Moves trains. The sender's interface serves its queues in turn, a train at a time, whenever the
// link is free. Crossing a link is arithmetic (port.h); its result is a branch with the time of the
// next action at the other end: at a switch when the first packet is there, at a host when the last
// one is. The branches of one switch make a hop, which is in the event queue once, for its next
// branch. Branches that are due already are handled immediately.
#include "sim/network/fabric.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mcast::sim {

namespace {

constexpr double kTrainTime = 20e-6;  // seconds

Nanos moment(double t) { return static_cast<Nanos>(std::ceil(t - 1e-6)); }

// The lowest `count` bits of those in `mask`.
uint64_t first_bits(uint64_t mask, unsigned count) {
  uint64_t kept = 0;
  for (; count > 0 && mask != 0; count--, mask &= mask - 1) kept |= mask & -mask;
  return kept;
}

}  // namespace

Fabric::Fabric(const FabricOptions& options, EventQueue& events, FabricSink& sink)
    : options_(options),
      events_(events),
      sink_(sink),
      topology_(options.topology),
      router_(topology_, options.seed, options.trees_by_source) {
  add_links();
  for (const double rate : {options.host_up.rate, options.host_down.rate, options.inner.rate}) {
    limit_trains(rate);
  }
}

void Fabric::limit_trains(double rate) {
  if (rate > 0) train_limit_ = std::min(train_limit_, static_cast<size_t>(rate * kTrainTime));
}

void Fabric::set_rate(LinkId link, double rate) {
  PortSpec port = ports_[link].spec();
  port.rate = rate;
  ports_[link] = Port(port);
  limit_trains(rate);
}

void Fabric::add_links() {
  for (LinkId id = static_cast<LinkId>(ports_.size()); id < topology_.links(); id++) {
    const Link& link = topology_.link(id);
    ports_.emplace_back(link.level > 1 ? options_.inner
                        : link.up      ? options_.host_up
                                       : options_.host_down);
    loss_of_.push_back(kNone);
  }
  traffic_.resize(ports_.size());
  nics_.resize(size_t{topology_.hosts()} * topology_.planes());
  for (Nic& nic : nics_) {
    nic.queues.resize(options_.nic_queues);
    nic.bytes.resize(options_.nic_queues);
  }
}

HostId Fabric::grow() {
  const HostId host = topology_.grow();
  add_links();
  return host;
}

void Fabric::set_loss(LinkId link, double rate, double burst) {
  if (loss_of_[link] == kNone) {
    loss_of_[link] = static_cast<uint32_t>(losses_.size());
    losses_.emplace_back();
  }
  losses_[loss_of_[link]] = Loss(rate, burst, mix64(mix64(options_.seed + 0x6c6f7373) + link));
}

uint32_t Fabric::nic_of(HostId host, unsigned plane) const {
  return static_cast<uint32_t>(plane * topology_.hosts() + host);
}

bool Fabric::send(HostId from, const TrainRef& train, unsigned queue) {
  const uint32_t index = nic_of(from, train->plane);
  Nic& nic = nics_[index];
  const unsigned q = queue % options_.nic_queues;
  if (options_.nic_limit > 0 && !nic.queues[q].empty() &&
      nic.bytes[q] + train->wire > static_cast<double>(options_.nic_limit)) {
    return false;
  }
  nic.queues[q].push(train);
  nic.bytes[q] += train->wire;
  queued_++;
  if (!nic.scheduled) serve(index, false);
  return true;
}

void Fabric::on_nic(uint32_t index) { serve(index, true); }

void Fabric::serve(uint32_t index, bool busy) {
  Nic& nic = nics_[index];
  const auto host = static_cast<HostId>(index % topology_.hosts());
  const auto plane = static_cast<unsigned>(index / topology_.hosts());
  const Port& port = ports_[topology_.host_link(plane, host)];
  const auto queues = static_cast<uint32_t>(nic.queues.size());
  nic.scheduled = true;  // trains sent meanwhile by actions at this moment wait their turn
  uint32_t empty = 0;
  while (empty < queues) {
    const uint32_t q = (nic.turn + empty) % queues;
    if (nic.queues[q].empty()) {
      empty++;
      continue;
    }
    const Nanos free = moment(port.free_at());
    if (free > events_.now()) return events_.push(free, EventKind::kNic, index);
    nic.turn = (q + 1) % queues;
    empty = 0;
    const TrainRef train = nic.queues[q].front();
    nic.queues[q].pop();
    nic.bytes[q] -= train->wire;
    queued_--;
    // A busy link continues when it is free, not at the next whole nanosecond.
    depart(host, train, busy ? port.free_at() : static_cast<double>(events_.now()));
    busy = false;
  }
  nic.scheduled = false;
}

void Fabric::depart(HostId host, const TrainRef& train, double now) {
  const uint32_t index = hops_.take();
  Hop& hop = hops_[index];
  hop.train = train;
  const LinkId up = topology_.host_link(train->plane, host);
  cross(hop, up, train->all(), {now, now}, kNone);
  if (train->tree != kNone) {
    // The sender's own host receives it without crossing the switch's port, at the same time as a
    // neighbour would.
    const Port& port = ports_[up];
    const double sent = std::max(now, port.free_at());
    const double delay = port.spec().delay + options_.host_down.delay;
    hop.branches.push_back(
        {kNone, train->all(), {sent + delay, sent + delay}, moment(sent + delay)});
  }
  sink_.on_departure(*train);
  start(index);
}

void Fabric::cross(Hop& hop, LinkId link, uint64_t mask, const Passage& here, LinkId from) {
  const Train& train = *hop.train;
  Port& port = ports_[link];
  LinkTraffic& account = traffic_[link];
  const auto packets = static_cast<unsigned>(std::popcount(mask));
  double wire = train.wire_of(mask);
  const double waiting = port.waiting(here.first);
  const unsigned room = port.room_for(here, packets, wire);
  if (room < packets) {
    account.lost_full += packets - room;
    mask = first_bits(mask, room);
    if (mask == 0) return;
    wire = train.wire_of(mask);
  }
  const unsigned taken = std::min(room, packets);
  const PortSpec& spec = port.spec();
  if (spec.mark > 0 && waiting > spec.mark) account.marked += taken;
  Branch branch{link, mask, port.pass(here, taken, wire), 0};
  if (spec.pause > 0 && from != kNone && port.waiting(here.last) > spec.pause) {
    ports_[from].hold_until(port.drained_to(spec.resume));
  }
  account.peak_waiting = std::max(account.peak_waiting, port.waiting(here.first));
  const Amount amount{static_cast<uint64_t>(wire), taken};
  account.of[static_cast<size_t>(train.what)] += amount;
  if (from == kNone && train.from < sent_by_.size()) {
    sent_by_[train.from][static_cast<size_t>(train.what)] += amount;
  }
  const Link& way = topology_.link(link);
  if (timeline_ != nullptr) {
    timeline_->add(Topology::link_class(way), branch.there.last, static_cast<uint64_t>(wire));
  }
  if (loss_of_[link] != kNone) {
    branch.mask = losses_[loss_of_[link]].survivors(mask, events_.now());
    account.lost_fault += static_cast<uint64_t>(taken - std::popcount(branch.mask));
    if (branch.mask == 0) return;
  }
  const bool to_host = way.level == 1 && !way.up;
  branch.due = moment(to_host ? branch.there.last : branch.there.first);
  hop.branches.push_back(branch);
}

void Fabric::start(uint32_t index) {
  Hop& hop = hops_[index];
  // Stable: ports with equal times are served in their order. Ports with equal times need no
  // sorting.
  const auto earlier = [](const Branch& a, const Branch& b) { return a.due < b.due; };
  if (!std::is_sorted(hop.branches.begin(), hop.branches.end(), earlier)) {
    std::stable_sort(hop.branches.begin(), hop.branches.end(), earlier);
  }
  hop.next = 0;
  on_hop(index);
}

void Fabric::on_hop(uint32_t index) {
  Hop& hop = hops_[index];
  while (hop.next < hop.branches.size() && hop.branches[hop.next].due <= events_.now()) {
    arrive(hop.train, hop.branches[hop.next++]);
  }
  if (hop.next < hop.branches.size()) {
    events_.push(hop.branches[hop.next].due, EventKind::kHop, index);
    return;
  }
  hop.branches.clear();
  hop.train = {};
  hops_.give(index);
}

void Fabric::arrive(const TrainRef& train, const Branch& branch) {
  trace_.add(events_.now(), static_cast<uint64_t>(train->what), branch.link,
             train->wire_of(branch.mask));
  if (branch.link == kNone) return sink_.on_train(kNone, train, branch.mask, true);
  const Link& link = topology_.link(branch.link);
  if (link.level == 1 && !link.up) {
    ArrivalTimes& times = arrivals_[static_cast<size_t>(train->what)];
    times.last = events_.now();
    times.first = std::min(times.first, times.last);
    return sink_.on_train(link.child, train, branch.mask, false);
  }
  at_switch(train, branch);
}

void Fabric::at_switch(const TrainRef& train, const Branch& in) {
  const uint32_t index = hops_.take();
  Hop& hop = hops_[index];
  hop.train = train;
  if (train->tree == kNone) {
    const auto& links = train->route.links;
    const auto* const at = std::find(links.begin(), links.begin() + train->route.length, in.link);
    cross(hop, *(at + 1), in.mask, in.there, in.link);
    return start(index);
  }
  const Tree& tree = router_.tree(train->tree);
  const Link& link = topology_.link(in.link);
  const Switch here = link.up ? topology_.upper(link) : topology_.lower(link);
  const LinkId back = Topology::reverse(in.link);
  for (const LinkId down : tree.down[topology_.id(here)]) {
    if (down != back) cross(hop, down, in.mask, in.there, in.link);
  }
  if (link.up && here.level < train->root_level) {
    cross(hop, router_.tree_up(tree, here.level + 1u, here.block), in.mask, in.there, in.link);
  }
  start(index);
}

}  // namespace mcast::sim
