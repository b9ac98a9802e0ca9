// The window is the number of segments that are granted and whose results have not been sent, over
// all operations: each takes at most one place (an accumulator and room for early contributions),
// so the reservation suffices whatever ranks do, and a slow owner delays the others only when its
// results have taken all places. Grants are for half a window at least. They go to ranks that have
// opened the operation; a rank that opens it later gets the grants of the others.
#include "aggregation/fold/job.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "base/element.h"
#include "base/reduce_kernels.h"

namespace mcast::aggregation {
namespace {

// State of one contribution in a SegmentFold.
constexpr size_t kContributionState = 48;
// State of one rack in a RackFold.
constexpr size_t kRackState = 128;

// The reason why no station can fold this; "": it can.
const char* obstacle(const wire::Descriptor& d) {
  if (d.kind != wire::Kind::kAllreduce && d.kind != wire::Kind::kReduceScatter) {
    return "stations fold all_reduce and reduce_scatter only";
  }
  if (!reducible(d.element, d.reduction)) return "no such element type or operator";
  return stations_fold(static_cast<Element>(d.element)) ? "" : "stations do not fold float8";
}

}  // namespace

Job::Job(const JobParams& params, const Planner& planner, Outlet& out, Counters& counters)
    : params_(params),
      planner_(planner),
      out_(out),
      counters_(counters),
      lookahead_(station_lookahead(params)),
      pool_(size_t{lookahead_} * params.hosts.count()),
      tree_{BufferPool(size_t{lookahead_} * params.racks.count()), {}, {}},
      accumulators_(kStationRatio * lookahead_ * params.segment),
      result_(params.segment),
      table_(lookahead_, params.hosts.count()),
      ageing_(params.deadline),
      expects_(params.hosts.members()) {
  for (size_t i = 0; i < size_t{lookahead_} * params.hosts.count(); i++) {
    pool_.give(std::vector<std::byte>(params.segment));
  }
  for (size_t i = 0; !params.racks.flat() && i < lookahead_ * (params.racks.count() - 1); i++) {
    tree_.sums.give(std::vector<std::byte>(kStationRatio * params.segment));
  }
  folds_.reserve(lookahead_);
  for (uint32_t place = 0; place < lookahead_; place++) {
    folds_.emplace_back(params.hosts.count(), params_.racks, pool_, tree_.sums);
    free_.push_back(place);
  }
  operations_.reserve(kAhead);
  for (uint32_t i = 0; i < kAhead; i++) {
    idle_.push_back(&operations_.emplace_back(params_.hosts, params_.racks, params_.fold));
  }
  live_.reserve(kAhead);
}

size_t Job::memory() const {
  const size_t contributors = params_.hosts.count(), members = params_.hosts.members();
  const size_t racks = std::max<size_t>(1, params_.racks.count());
  return lookahead_ * (contributors + kStationRatio * (racks - 1)) * params_.segment +
         accumulators_.size() + result_.size() + table_.memory() +
         lookahead_ * (sizeof(RackFold) + contributors * kContributionState + racks * kRackState) +
         kAhead * (sizeof(Operation) + members * (sizeof(uint32_t) + 1)) +
         members * sizeof(uint64_t);
}

Operation* Job::find(Sequence sequence) {
  for (Operation* const op : live_) {
    if (op->sequence() == sequence) return op;
  }
  return nullptr;
}

size_t Job::list_room() const {
  size_t taken = 0;
  for (const Operation* const op : live_) taken += op->list_memory();
  return kMostLists - std::min(kMostLists, taken);
}

Operation& Job::start(Sequence sequence, const wire::AggOpen& open) {
  const wire::Descriptor& descriptor = open.descriptor;
  const size_t room = list_room();
  Operation* const op = idle_.back();
  idle_.pop_back();
  const auto at = std::find_if(live_.begin(), live_.end(), [sequence](const Operation* other) {
    return other->sequence() > sequence;
  });
  live_.insert(at, op);
  if (const char* const why = obstacle(descriptor); *why != 0) {
    op->begin(sequence, descriptor, Status(Code::kInvalidArgument, why));
  } else {
    op->begin(sequence, descriptor, planner_.plan(open.roster, descriptor, room));
  }
  if (op->is_declined()) {
    counters_.add(Counter::agg_declined);
  } else {
    join(*op, open);
  }
  return *op;
}

void Job::finish_if_done(Operation& op) {
  if (!op.finished()) return;
  live_.erase(std::find(live_.begin(), live_.end(), &op));
  idle_.push_back(&op);
  op.end();
}

Status Job::on_open(Member from, Sequence sequence, uint32_t hash, const wire::AggOpen& open,
                    Nanos now) {
  if (sequence < expects(from)) {
    counters_.add(Counter::agg_repeated);
    return {};
  }
  if (open.descriptor.hash() != hash)
    return broke(from, sequence, "an operation that differs from its hash");
  Operation* op = find(sequence);
  if (op == nullptr && !params_.is_rank(from) && is_over(sequence)) {
    expects(from) = uint64_t{sequence} + 1;
    counters_.add(Counter::agg_stale);
    return {};
  }
  if (op == nullptr && idle_.empty()) {
    return broke(from, sequence, "more than " + std::to_string(kAhead) + " operations ahead");
  }
  expects(from) = uint64_t{sequence} + 1;
  if (op == nullptr) op = &start(sequence, open);
  if (op->hash() != hash && !op->is_declined()) {
    decline(*op, Status(Code::kMismatch, "rank " + std::to_string(from) + " has called " +
                                             open.descriptor.to_string() + ", another rank " +
                                             op->descriptor().to_string()));
  }
  if (params_.is_rank(from)) {
    op->open(from);
  } else if (Operation::Partner* const leaf = op->partner(from)) {
    leaf->opened = true;
  }
  if (op->is_declined()) {
    tell_declined(*op, from, hash);
  } else if (op->granted() > 0) {
    send_grant(*op, from);
  }
  finish_if_done(*op);
  advance(now);
  return {};
}

const char* Job::fault_of(const Operation& op, Member from, const wire::ReduceData& data) const {
  if (data.segment >= op.size()) return "a contribution beyond its list of segments";
  const ListEntry entry = op.at(data.segment);
  if (!op.leads(from, entry)) return "a contribution that another rank has to send";
  if (data.segment >= op.granted()) return "a contribution that was not asked for";
  if (data.segment > op.next_of(from)) return "a contribution out of order";
  if (data.payload.size() != op.rule().contribution_bytes(entry.bytes)) {
    return "a contribution of another length";
  }
  if (op.partial().is_excused(from)) return "a contribution that it has withdrawn";
  return "";
}

Status Job::on_data(Member from, Sequence sequence, uint32_t hash, const wire::ReduceData& data,
                    Nanos now) {
  Operation* const op = find(sequence);
  if (sequence >= expects(from) || (op != nullptr && !op->opened(from))) {
    return broke(from, sequence, "a contribution before it was opened");
  }
  if (op == nullptr || op->is_declined()) {
    counters_.add(Counter::agg_stale);
    return {};
  }
  if (op->hash() != hash) return broke(from, sequence, "a contribution to another operation");
  if (const char* const fault = fault_of(*op, from, data); *fault != 0) {
    return broke(from, sequence, fault);
  }
  const uint32_t contributor = params_.hosts.host_of(from);
  if (data.segment < op->next_of(from)) {
    counters_.add(Counter::agg_repeated);
    return {};
  }
  BlockRecord& block = *block_of(*op, op->at(data.segment), data.segment, now);
  RackFold& fold = folds_[block.place];
  const bool early = !fold.in_turn(contributor);
  const bool fresh =
      table_.add(block, contributor, now) && fold.add(contributor, data.factor, data.payload);
  assert(fresh);
  if (!fresh) return broke(from, sequence, "a contribution that it has sent before");
  op->contributed(from);
  counters_.add(Counter::reduce_bytes_received, data.payload.size());
  if (early) counters_.add(Counter::agg_staged_bytes, data.payload.size());
  if (!fold.complete()) return {};
  block.folded = true;
  if (emit(*op, block)) grant();
  return {};
}

BlockRecord* Job::block_of(const Operation& op, const ListEntry& entry, uint32_t number,
                           Nanos now) {
  const BlockKey key{params_.id, op.sequence(), number};
  if (BlockRecord* const there = table_.find(key)) return there;
  BlockRecord* const block = table_.insert(key, now);
  assert(block != nullptr && !free_.empty());
  block->place = free_.back();
  free_.pop_back();
  folds_[block->place].begin(op.rule(), op.run(entry), entry.bytes,
                             &accumulators_[block->place * kStationRatio * params_.segment],
                             op.only());
  if (op.told(entry.owner)) excuse(op, folds_[block->place]);
  return block;
}

Status Job::on_partial(Member from, Sequence sequence, uint32_t hash,
                       const wire::PartialResult& partial) {
  Operation* const op = find(sequence);
  if (sequence >= expects(from) || (op != nullptr && !op->opened(from))) {
    return broke(from, sequence, "a partial result before it was opened");
  }
  if (op == nullptr || op->is_declined()) {
    counters_.add(Counter::agg_stale);
    return {};
  }
  if (op->hash() != hash || !params_.hosts.flat() || !params_.racks.flat() ||
      !partial.fits(params_.hosts.members()) || (op->is_partial() && op->partial() != partial)) {
    return broke(from, sequence, "a partial result with impossible values");
  }
  op->excuse(partial);
  if (partial.contributors < 2) {
    // Some segments would get no contribution here.
    decline(*op, Status(Code::kUnavailable, "only one rank contributes"));
    finish_if_done(*op);
    grant();
    return {};
  }
  op->tell(from);
  if (!excuse_blocks(*op, from)) {
    return broke(from, sequence, "a partial result without a rank that has contributed");
  }
  emit_held();
  grant();
  return {};
}

bool Job::excuse(const Operation& op, RackFold& fold) const {
  fold.divide_by(op.partial().contributors);
  bool good = true;
  for (const Member m : op.partial().ranks()) good = fold.excuse(m) && good;
  return good;
}

// Excuses contributors in the blocks of the owner's segments that exist already.
bool Job::excuse_blocks(const Operation& op, Member owner) {
  for (uint32_t i = 0; i < table_.capacity(); i++) {
    const BlockRecord* const there = table_.at(i);
    if (there == nullptr || there->key.operation != op.sequence() || there->folded ||
        op.at(there->key.number).owner != owner) {
      continue;
    }
    RackFold& fold = folds_[there->place];
    if (!excuse(op, fold)) return false;
    table_.find(there->key)->folded = fold.complete();
  }
  return true;
}

void Job::decline(Operation& op, Status why) {
  table_.erase_operation(params_.id, op.sequence(),
                         [this](const BlockRecord& block) { free_.push_back(block.place); });
  outstanding_ -= op.outstanding();
  op.decline(std::move(why));
  counters_.add(Counter::agg_declined);
  for (uint32_t m = 0; m < params_.hosts.members(); m++) {
    const auto rank = static_cast<Member>(m);
    if (op.opened(rank)) tell_declined(op, rank, op.hash());
  }
}

void Job::tell_declined(const Operation& op, Member to, uint32_t hash) {
  wire::Writer body;
  wire::put_agg_decline(body,
                        {static_cast<uint8_t>(op.declined().code()), op.declined().message()});
  const ConstBytes parts[] = {body.bytes()};
  send(to, Channel::kControl, wire::FrameType::kAggDecline, op, hash, parts);
}

bool Job::emit(Operation& op, BlockRecord& block) {
  if (!(op.is_leaf() ? send_sum(op, block) : send_result(op, block))) {
    if (!std::exchange(block.held, true)) counters_.add(Counter::agg_held);
    return false;
  }
  free_.push_back(block.place);
  outstanding_--;
  table_.erase(block);
  op.emit();
  finish_if_done(op);
  return true;
}

bool Job::may_send(Member to, size_t bytes) const {
  return out_.queued(to, Channel::kReduce) < kMostQueued && queued_ + bytes <= kMostQueuedToAll;
}

bool Job::send_result(Operation& op, const BlockRecord& block) {
  const ListEntry entry = op.at(block.key.number);
  const RackFold& fold = folds_[block.place];
  ConstBytes payload = fold.partial();
  if (!entry.own_kept) payload = ConstBytes(result_).first(entry.bytes);
  const size_t size = wire::kFrameHeader + wire::kAggResultHead + payload.size();
  if (!op.opened(entry.owner) || !may_send(entry.owner, size)) return false;
  if (!entry.own_kept) fold.finish(result_.data());
  wire::Writer head;
  wire::put_agg_result_head(head, block.key.number,
                            entry.own_kept ? wire::ResultForm::kPartial : wire::ResultForm::kFinal,
                            block.contributors);
  const ConstBytes parts[] = {head.bytes(), payload};
  send(entry.owner, Channel::kReduce, wire::FrameType::kAggResult, op, op.hash(), parts);
  counters_.add(Counter::reduce_bytes_sent, payload.size());
  queued_ += size;
  return true;
}

// At a leaf, a result that has left may be what another one waited for.
void Job::emit_held() {
  bool again = true;
  while (std::exchange(again, false)) {
    for (uint32_t i = 0; i < table_.capacity(); i++) {
      const BlockRecord* const there = table_.at(i);
      Operation* const op =
          there != nullptr && there->folded ? find(there->key.operation) : nullptr;
      const bool leaf = op != nullptr && op->is_leaf();
      const bool gone = op != nullptr && emit(*op, *table_.find(there->key));
      again = again || (gone && leaf);
    }
  }
}

void Job::grant() {
  if (stopped_) return;
  const uint32_t most = std::max(2u, lookahead_ / std::max(1u, out_.busy_jobs()));
  const uint32_t step = (most + 1) / 2;
  for (Operation* const op : live_) {
    const uint32_t left = op->ungranted(), room = most - std::min(most, outstanding_);
    const uint32_t more = left <= room ? left : room / step * step;
    if (more > 0) {
      op->grant(more);
      outstanding_ += more;
      tell_granted(*op);
    }
    // A rank may wait for this operation before it posts the next, which must not use its room.
    if (op->ungranted() > 0) return;
  }
}

// In a tree, ranks that do not contribute here need no grants.
void Job::tell_granted(Operation& op) {
  for (uint32_t m = 0; m < params_.hosts.members(); m++) {
    const auto rank = static_cast<Member>(m);
    if (op.opened(rank) && (op.partners().empty() || op.next_of(rank) < op.size())) {
      send_grant(op, rank);
    }
  }
  for (const Operation::Partner& leaf : op.partners()) {
    if (leaf.opened) send_grant(op, leaf.who.station);
  }
}

void Job::send_grant(const Operation& op, Member to) {
  wire::Writer body;
  body.put<uint32_t>(op.granted());
  const ConstBytes parts[] = {body.bytes()};
  send(to, Channel::kReduce, wire::FrameType::kReduceGrant, op, op.hash(), parts);
}

void Job::advance(Nanos now) {
  measure_queues();
  emit_held();
  grant();
  if (const auto idle = ageing_.scan(table_, now)) tell_idle(*idle, now);
}

void Job::measure_queues() {
  queued_ = 0;
  for (uint32_t m = 0; m < params_.hosts.members(); m++) {
    queued_ += out_.queued(static_cast<Member>(m), Channel::kReduce);
  }
  for (const Member station : tree_.stations) queued_ += out_.queued(station, Channel::kReduce);
}

void Job::tell_idle(const BlockKey& key, Nanos now) {
  const BlockRecord* const block = table_.find(key);
  if (block == nullptr || block->folded) return;
  const Operation& op = *find(key.operation);
  wire::Writer body;
  wire::put_agg_wait(body, wait_of(op, *block, now));
  const ConstBytes parts[] = {body.bytes()};
  send(0, Channel::kControl, wire::FrameType::kAggStale, op, op.hash(), parts);
  counters_.add(Counter::agg_idle);
}

wire::AggWait Job::wait_of(const Operation& op, const BlockRecord& block, Nanos now) const {
  const ListEntry entry = op.at(block.key.number);
  const uint32_t contributors = params_.hosts.count();
  wire::AggWait wait{block.key.number, 0, std::vector<uint64_t>((contributors + 63) / 64)};
  wait.age_ms = static_cast<uint32_t>(std::min<Nanos>((now - block.touched) / kMilli, UINT32_MAX));
  if (block.folded) {
    const uint32_t host = params_.hosts.host_of(entry.owner);
    if (!op.opened(entry.owner)) wait.missing[host / 64] |= uint64_t{1} << host % 64;
    return wait;
  }
  for (uint32_t c = 0; c < contributors; c++) {
    const bool excused = op.is_partial() && op.partial().is_excused(static_cast<Member>(c));
    if (!op.takes(c, entry) || table_.has(block, c) || excused) continue;
    wait.missing[c / 64] |= uint64_t{1} << c % 64;
  }
  return wait;
}

std::optional<Job::Waiting> Job::waiting(Nanos now) {
  if (live_.empty()) return std::nullopt;
  const Operation& op = *live_.front();
  const BlockRecord* oldest = nullptr;
  for (uint32_t i = 0; i < table_.capacity(); i++) {
    const BlockRecord* const block = table_.at(i);
    if (block == nullptr || block->key.operation != op.sequence()) continue;
    if (oldest == nullptr || block->key.number < oldest->key.number) oldest = block;
  }
  if (oldest != nullptr) return Waiting{op.sequence(), wait_of(op, *oldest, now)};
  return Waiting{op.sequence(), {op.emitted(), 0, {}}};
}

void Job::send(Member to, Channel channel, wire::FrameType type, const Operation& op, uint32_t hash,
               std::span<const ConstBytes> body) {
  const wire::FrameHeader header{type, 1, params_.self, params_.tag, op.sequence(), hash};
  std::array<std::byte, wire::kFrameHeader> head;
  wire::write_frame_header(head.data(), header, body);
  std::array<ConstBytes, 3> parts{ConstBytes(head)};
  assert(body.size() < parts.size());
  std::copy(body.begin(), body.end(), parts.begin() + 1);
  out_.send(to, channel, std::span(parts).first(1 + body.size()));
  counters_.add(Counter::frames_sent);
  for (const ConstBytes part : std::span(parts).first(1 + body.size())) {
    counters_.add(Counter::frame_bytes_sent, part.size());
  }
}

Status Job::broke(Member from, Sequence sequence, const std::string& what) {
  counters_.add(Counter::agg_malformed);
  const std::string who =
      params_.is_rank(from) ? "rank " + std::to_string(from) : "another station";
  return Status(Code::kInternal,
                who + " broke the protocol of operation " + std::to_string(sequence) + ": " + what);
}

}  // namespace mcast::aggregation
