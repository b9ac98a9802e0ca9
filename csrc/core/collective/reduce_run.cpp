// Blocks of an all_reduce or a reduce are equal but for the last ones, so that streams of the
// multicast half stay uniform: a block that is shorter has a scratch stream of full length, whose
// true part is copied to the output at the end. In place is safe: the result of a segment exists
// only after every member's contribution to it has left.
#include "collective/reduce_run.h"

#include <algorithm>
#include <cstring>

#include "base/reduce_kernels.h"
#include "base/rng.h"

namespace mcast {
namespace {

Slice scratch(size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return {std::make_shared<Region>(memory->data(), bytes, memory), 0, bytes};
}

// The same memory as a region of its own, of which nothing can be read yet. (It holds the memory,
// not the other region: whoever holds on to it beyond the operation must not prolong that one's
// life.)
Slice marked_apart(const Slice& s) {
  auto keepalive = s.region ? s.region->keepalive() : nullptr;
  Slice own{std::make_shared<Region>(s.data(), s.length, std::move(keepalive)), 0, s.length};
  own.region->set_readable(0);
  return own;
}

}  // namespace

ReduceRun::ReduceRun(const Plan& plan, const ReduceArgs& args, Sequence sequence, Shared& shared,
                     std::unique_ptr<StationShare> dealt)
    : stations(std::move(dealt)),
      unasked(shared.hosts.members()),
      plan_(plan),
      args_(args),
      shared_(shared),
      members_(shared.hosts.members()),
      self_(shared.self) {
  const Hosts& hosts = shared.hosts;
  const Member self = self_;
  const uint32_t members = members_, here = hosts.host_of(self);
  for (uint32_t h = 0; h < hosts.count(); h++) contributors_.push_back(hosts.leader(h, self));
  own_ = static_cast<Member>(here);
  grants.granted = static_cast<uint32_t>(contributors_.size()) - 1;
  if (plan.way == ReduceWay::kOneStep) {
    const Slice all = scratch(plan.block * members);
    for (uint32_t m = 0; m < members; m++) {
      stream_outputs_.push_back({all.region, m * plan.block, plan.block});
    }
    // A region of its own: its readable end says whether our input has got here.
    result_ = marked_apart(stream_outputs_[self]);
    stream_outputs_[self] = result_;
    own_staged_ = true;
    refresh_own();
    return;
  }
  if (plan.way == ReduceWay::kGather) {
    for (uint32_t m = 0; m < members; m++) {
      const auto member = static_cast<Member>(m);
      stream_outputs_.push_back(length(member) == plan.block ? part(args.output, member)
                                                             : scratch(plan.block));
    }
    // A region of its own: its readable end is that of the folding, not of the output.
    result_ = marked_apart(stream_outputs_[self]);
    stream_outputs_[self] = result_;
  } else if (plan.way == ReduceWay::kScatter) {
    result_ = args.output;
  } else {
    result_ = args.output.region ? part(args.output, self) : scratch(length(self));
    if (args.output.region) collected.assign(members, 0);
  }
  if (!hosts.flat()) {
    const uint64_t cookie = mix64(shared.tag ^ mix64(sequence ^ uint64_t{self} << 48));
    host.emplace(hosts, self, args_, plan.share, cookie, shared.read_host, shared.counters);
  }
  ReduceShape shape;
  shape.members = static_cast<uint32_t>(contributors_.size());
  shape.self = own_;
  shape.order = shared.fold;
  shape.contributed = host.has_value();
  shape.divisor = members;
  shape.element = args.element;
  shape.reduction = host ? host->reduction() : args.reduction;
  shape.factor = factor();
  shape.bytes = length(self);
  shape.segment = plan.segment;
  // Contributors are granted in turn: those that were first may be a step ahead of the others.
  shape.window = plan.lookahead + grant_step(plan.lookahead, plan.segment) - 1;
  shape.granted = plan.unasked;
  if (stations) {
    shape.list.emplace();
    for (uint32_t i = 0; i < segments_of(self); i++) {
      if (stations->deal.executor(self, i) == Deal::kOwner) shape.list->push_back(i);
    }
    stations->direct = stations->announced = static_cast<uint32_t>(shape.list->size());
  }
  const Slice own = contribution(self);
  own_staged_ = !host && !readable(self, own.length);
  if (own_staged_) shape.own_ready = 0;
  owner.emplace(shape, own.data(), result_.data(), shared.pool);
  std::vector<ReduceSender::List> lists = direct_lists();
  if (stations) add_station_lists(lists);
  sender.emplace(self, std::move(lists), plan.unasked);
}

// What owners ask of us, by member.
std::vector<ReduceSender::List> ReduceRun::direct_lists() const {
  std::vector<ReduceSender::List> lists(members_);
  const uint32_t here = shared_.hosts.host_of(self_);
  for (uint32_t m = 0; m < members_; m++) {
    const auto to = static_cast<Member>(m);
    if (to == self_ || shared_.hosts.leader(here, to) != self_) continue;
    if (!stations) {
      lists[m] = ReduceSender::List::whole(segments_of(to));
      continue;
    }
    for (uint32_t i = 0; i < segments_of(to); i++) {
      if (stations->deal.executor(to, i) != Deal::kOwner) continue;
      lists[m].entries.push_back({to, i, lists[m].length++});
    }
  }
  return lists;
}

// What stations ask of us, behind those, in the order of Deal::entry().
void ReduceRun::add_station_lists(std::vector<ReduceSender::List>& lists) const {
  const Deal& deal = stations->deal;
  const uint32_t here = shared_.hosts.host_of(self_);
  const size_t first = lists.size();
  lists.resize(first + stations->set.stations.size());
  uint32_t rows = 0;
  for (uint32_t m = 0; m < members_; m++) {
    rows = std::max(rows, deal.segments(static_cast<Member>(m)));
  }
  for (uint32_t row = 0; row < rows; row++) {
    for (uint32_t i = 0; i < members_; i++) {
      const auto to = static_cast<Member>((row + i) % members_);
      const uint16_t station = deal.executor(to, row);
      if (station == Deal::kOwner) continue;
      ReduceSender::List& list = lists[first + station];
      const uint32_t number = list.length++;
      const bool ours = shared_.hosts.leader(here, to) == self_;
      if (ours && !(stations->kept && to == self_)) list.entries.push_back({to, row, number});
    }
  }
}

bool ReduceRun::place(uint32_t segment, bool partial, ConstBytes payload_bytes) {
  if (!owner->awaits(segment)) return false;
  if (!partial) return owner->place_result(segment, payload_bytes);
  const size_t at = size_t{segment} * plan_.segment;
  const auto own = payload(self_, at, std::min(plan_.segment, length(self_) - at));
  return own && owner->place_partial(segment, payload_bytes, *own);
}

size_t ReduceRun::length(Member m) const {
  if (plan_.way == ReduceWay::kScatter) return plan_.share;
  const size_t at = std::min<size_t>(m * plan_.share, plan_.descriptor.bytes);
  return std::min<size_t>(plan_.share, plan_.descriptor.bytes - at);
}

Slice ReduceRun::part(const Slice& whole, Member m) const {
  const size_t at = std::min<size_t>(m * plan_.share, plan_.descriptor.bytes);
  return {whole.region, whole.offset + at, length(m)};
}

Slice ReduceRun::contribution(Member m) const {
  return plan_.way == ReduceWay::kScatter ? args_.inputs[m] : part(args_.inputs[0], m);
}

void ReduceRun::publish() {
  if (plan_.way != ReduceWay::kGather) return;
  // The rest of a short block is padding.
  result_.region->set_readable(owner->complete() ? result_.length : owner->final_bytes());
}

std::optional<Member> ReduceRun::contributor(Member m) const {
  const uint32_t host_of = shared_.hosts.host_of(m);
  if (contributors_[host_of] != m) return std::nullopt;
  return static_cast<Member>(host_of);
}

std::optional<ConstBytes> ReduceRun::payload(Member m, size_t offset, size_t bytes) {
  if (host) return host->fold(m, offset, bytes, shared_.scratch);
  return contribution(m).bytes().subspan(offset, bytes);
}

bool ReduceRun::all_readable() const {
  return std::all_of(args_.inputs.begin(), args_.inputs.end(), [](const Slice& s) {
    return !s.region || s.offset + s.length <= s.region->readable();
  });
}

bool ReduceRun::readable(Member m, uint64_t bytes) const {
  if (host) return inputs.offered && host->all_offered() && !host->refused();
  const Slice c = contribution(m);
  return !c.region || c.offset + bytes <= c.region->readable();
}

bool ReduceRun::refresh_own() {
  if (!own_staged_) return false;
  if (plan_.way == ReduceWay::kOneStep) {
    const Slice& input = args_.inputs[0];
    if (input.offset + plan_.block > input.region->readable()) return false;
    std::memcpy(result_.data(), input.data(), plan_.block);
    result_.region->set_readable(plan_.block);
    own_staged_ = false;
    return true;
  }
  const Slice own = contribution(self_);
  const uint64_t ready = own.region->readable();
  own_staged_ = ready < own.offset + own.length;
  owner->own_ready(ready <= own.offset ? 0 : std::min<uint64_t>(ready - own.offset, own.length));
  return true;
}

uint64_t ReduceRun::completed() const {
  return owner && plan_.way != ReduceWay::kToRoot ? owner->final_bytes() : 0;
}

bool ReduceRun::lands(uint32_t stream) const {
  return plan_.way == ReduceWay::kGather && length(static_cast<Member>(stream)) == plan_.block;
}

void ReduceRun::drop_memory() {
  host.reset();
  owner.reset();
  sender.reset();
  stream_outputs_.clear();
  result_ = {};
  args_ = {};
}

void ReduceRun::conclude() {
  if (plan_.way == ReduceWay::kOneStep) return fold_streams();
  if (plan_.way != ReduceWay::kGather) return;
  for (uint32_t m = 0; m < members_; m++) {
    const auto member = static_cast<Member>(m);
    const size_t bytes = length(member);
    if (bytes == plan_.block || bytes == 0) continue;
    std::memcpy(part(args_.output, member).data(), stream_outputs_[m].data(), bytes);
  }
}

void ReduceRun::fold_streams() {
  const Element e = args_.element;
  const Reduction r = args_.reduction;
  std::vector<std::byte> acc(plan_.block / element_size(e) * accumulator_size(e));
  const FoldLayout layout{shared_.fold, members_, 0, plan_.share};
  layout.for_each_part(0, plan_.block, [&](size_t at, size_t bytes, uint32_t first) {
    const size_t count = bytes / element_size(e);
    fold_first(e, r, args_.factor, stream_outputs_[first].data() + at, acc.data(), count);
    for (uint32_t i = 1; i < members_; i++) {
      const uint32_t m = (first + i) % members_;
      fold_next(e, r, args_.factor, stream_outputs_[m].data() + at, acc.data(), count);
    }
    fold_finish(e, r, members_, acc.data(), args_.output.data() + at, count);
  });
}

}  // namespace mcast
