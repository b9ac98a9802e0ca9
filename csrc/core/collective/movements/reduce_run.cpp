// Blocks of an all_reduce or a reduce have equal lengths except the last ones. Streams of the
// multicast half must be uniform, so a shorter block has a scratch stream of full length, whose
// valid part is copied to the output at the end. In-place reductions are safe: the result of a
// segment exists only after every member's contribution to it has been sent.
#include "collective/movements/reduce_run.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"

namespace mcast {
namespace {

Slice scratch(size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return {std::make_shared<Region>(memory->data(), bytes, memory), 0, bytes};
}

// The same memory as a separate region, of which nothing can be read yet. (It keeps the memory
// alive, not the other region, whose life must not be extended beyond the operation.)
Slice marked_apart(const Slice& s) {
  auto keepalive = s.region ? s.region->keepalive() : nullptr;
  Slice own{std::make_shared<Region>(s.data(), s.length, std::move(keepalive)), 0, s.length};
  own.region->set_readable(0);
  return own;
}

}  // namespace

ReduceRun::ReduceRun(const Plan& plan, const ReduceArgs& args, Sequence sequence, Shared& shared,
                     std::unique_ptr<FoldShare> share)
    : dealt(std::move(share)),
      unasked(shared.hosts.members()),
      plan_(plan),
      args_(args),
      shared_(shared),
      members_(shared.hosts.members()),
      self_(shared.self) {
  const Hosts& hosts = shared.hosts;
  for (uint32_t h = 0; h < hosts.count(); h++) contributors_.push_back(hosts.leader(h, self_));
  own_.place = static_cast<Member>(hosts.host_of(self_));
  own_.excused = args.excused;
  grants.granted = static_cast<uint32_t>(contributors_.size()) - 1;
  if (plan.reduce.way == ReduceWay::kOneStep) {
    one_step.emplace(args_, self_, FoldLayout{shared.fold, members_, 0, plan.reduce.share},
                     shared.member_racks);
    stream_outputs_ = one_step->streams();
    return;
  }
  choose_memory();
  make_owner(sequence);
  make_sender();
}

// Chooses memory for the result of our own block, and for the multicast of the others.
void ReduceRun::choose_memory() {
  if (plan_.reduce.way == ReduceWay::kGather) {
    for (uint32_t m = 0; m < members_; m++) {
      const auto member = static_cast<Member>(m);
      stream_outputs_.push_back(length(member) == plan_.block ? part(args_.output, member)
                                                              : scratch(plan_.block));
    }
    // A separate region: its readable end follows the folding, not the output.
    result_ = marked_apart(stream_outputs_[self_]);
    stream_outputs_[self_] = result_;
  } else if (plan_.reduce.way == ReduceWay::kScatter) {
    result_ = args_.output;
  } else {
    result_ = args_.output.region ? part(args_.output, self_) : scratch(length(self_));
    if (args_.output.region) to_root.collected.assign(members_, 0);
  }
}

void ReduceRun::make_owner(Sequence sequence) {
  const Hosts& hosts = shared_.hosts;
  if (!hosts.flat()) {
    const uint64_t cookie = mix64(shared_.tag ^ mix64(sequence ^ uint64_t{self_} << 48));
    host.emplace(hosts, self_, args_, plan_.reduce.share, cookie, shared_.read_host,
                 shared_.counters);
  }
  ReduceShape shape;
  shape.members = static_cast<uint32_t>(contributors_.size());
  shape.self = own_.place;
  shape.order = shared_.fold;
  shape.racks = &shared_.racks;
  shape.contributed = host.has_value();
  shape.divisor = members_;
  shape.element = args_.element;
  shape.reduction = host ? host->reduction() : args_.reduction;
  shape.wide = host && host->wide();
  shape.factor = factor();
  shape.bytes = length(self_);
  shape.segment = plan_.reduce.segment;
  // Contributors are granted in turn: the first ones may be a step ahead of the others.
  shape.window =
      plan_.reduce.lookahead + grant_step(plan_.reduce.lookahead, plan_.reduce.segment) - 1;
  shape.granted = plan_.reduce.unasked;
  if (dealt) {
    shape.list.emplace();
    for (uint32_t i = 0; i < segments_of(self_); i++) {
      if (dealt->deal.executor(self_, i) == Deal::kOwner) shape.list->push_back(i);
    }
    dealt->direct = dealt->announced = static_cast<uint32_t>(shape.list->size());
  }
  const Slice own = contribution(self_);
  own_.staged = !host && !readable(self_, own.length);
  if (own_.staged || own_.excused) shape.own_ready = 0;
  owner.emplace(shape, own.data(), result_.data(), shared_.pool);
}

void ReduceRun::make_sender() {
  std::vector<ReduceSender::List> lists = direct_lists();
  if (dealt) add_station_lists(lists);
  sender.emplace(self_, std::move(lists), plan_.reduce.unasked);
}

// Lists of segments for owners, by member.
std::vector<ReduceSender::List> ReduceRun::direct_lists() const {
  std::vector<ReduceSender::List> lists(members_);
  if (own_.excused) return lists;
  const uint32_t here = shared_.hosts.host_of(self_);
  for (uint32_t m = 0; m < members_; m++) {
    const auto to = static_cast<Member>(m);
    if (to == self_ || shared_.hosts.leader(here, to) != self_) continue;
    if (!dealt) {
      lists[m] = ReduceSender::List::whole(segments_of(to));
      continue;
    }
    for (uint32_t i = 0; i < segments_of(to); i++) {
      if (dealt->deal.executor(to, i) != Deal::kOwner) continue;
      lists[m].entries.push_back({to, i, lists[m].length++});
    }
  }
  return lists;
}

// Lists of segments for stations, behind those for owners, in the order of Deal::entry(). In a
// tree, an entry is in the lists of a station at the top and of each rack's leaf; ours goes to our
// rack's leaf if there is one.
void ReduceRun::add_station_lists(std::vector<ReduceSender::List>& lists) const {
  const uint32_t here = shared_.hosts.host_of(self_);
  const size_t first = lists.size();
  lists.resize(first + dealt->members.size());
  if (own_.excused) return;
  const uint32_t racks = dealt->leaves.any() ? shared_.racks.count() : 0;
  dealt->deal.for_each([&](const Deal::Entry& entry, uint16_t top) {
    const auto [to, row] = entry;
    uint16_t station = top;
    uint32_t number = lists[first + top].length++;
    for (uint32_t rack = 0; rack < racks; rack++) {
      const uint16_t leaf = dealt->leaves.leaf(rack, to, row);
      if (leaf == LeafDeal::kNone) continue;
      const uint32_t there = lists[first + leaf].length++;
      if (rack != shared_.racks.rack_of(here)) continue;
      station = leaf;
      number = there;
    }
    const bool ours = shared_.hosts.leader(here, to) == self_;
    if (ours && !(dealt->kept && to == self_)) {
      lists[first + station].entries.push_back({to, row, number});
    }
  });
}

bool ReduceRun::place(uint32_t segment, bool of_others, ConstBytes payload_bytes) {
  if (!owner->awaits(segment)) return false;
  if (!of_others) return owner->place_result(segment, payload_bytes);
  if (own_.excused) return owner->place_partial(segment, payload_bytes, {});
  const size_t at = size_t{segment} * plan_.reduce.segment;
  const auto own = payload(self_, at, std::min(plan_.reduce.segment, length(self_) - at));
  return own && owner->place_partial(segment, payload_bytes, *own);
}

size_t ReduceRun::length(Member m) const {
  if (plan_.reduce.way == ReduceWay::kScatter) return plan_.reduce.share;
  const size_t at = std::min<size_t>(m * plan_.reduce.share, plan_.descriptor.bytes);
  return std::min<size_t>(plan_.reduce.share, plan_.descriptor.bytes - at);
}

Slice ReduceRun::part(const Slice& whole, Member m) const {
  const size_t at = std::min<size_t>(m * plan_.reduce.share, plan_.descriptor.bytes);
  return {whole.region, whole.offset + at, length(m)};
}

Slice ReduceRun::contribution(Member m) const {
  return plan_.reduce.way == ReduceWay::kScatter ? args_.inputs[m] : part(args_.inputs[0], m);
}

void ReduceRun::publish() {
  if (plan_.reduce.way != ReduceWay::kGather) return;
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

bool ReduceRun::readable(Member m, uint64_t bytes) const {
  if (host) return inputs.offered && host->all_offered() && !host->refused();
  const Slice c = contribution(m);
  return !c.region || c.offset + bytes <= c.region->readable();
}

bool ReduceRun::refresh_own() {
  if (one_step) return one_step->take_input();
  if (!own_.staged) return false;
  const Slice own = contribution(self_);
  const uint64_t ready = own.region->readable();
  own_.staged = ready < own.offset + own.length;
  owner->own_ready(ready <= own.offset ? 0 : std::min<uint64_t>(ready - own.offset, own.length));
  return true;
}

uint64_t ReduceRun::completed() const {
  return owner && plan_.reduce.way != ReduceWay::kToRoot ? owner->final_bytes() : 0;
}

bool ReduceRun::lands(uint32_t stream) const {
  return plan_.reduce.way == ReduceWay::kGather &&
         length(static_cast<Member>(stream)) == plan_.block;
}

void ReduceRun::drop_memory() {
  host.reset();
  one_step.reset();
  owner.reset();
  sender.reset();
  stream_outputs_.clear();
  result_ = {};
  args_ = {};
}

void ReduceRun::conclude() {
  if (one_step) return one_step->fold();
  if (plan_.reduce.way != ReduceWay::kGather) return;
  for (uint32_t m = 0; m < members_; m++) {
    const auto member = static_cast<Member>(m);
    const size_t bytes = length(member);
    if (bytes == plan_.block || bytes == 0) continue;
    std::memcpy(part(args_.output, member).data(), stream_outputs_[m].data(), bytes);
  }
}

}  // namespace mcast
