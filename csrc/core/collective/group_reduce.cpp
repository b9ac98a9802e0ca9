// Reductions. Every member owns one block: it grants the others a few segments at a time, folds
// what they send in their order, and the result is its own (reduce_scatter), goes on by multicast
// as far as it is final (all_reduce), or to the root (reduce). Small blocks are sent unasked,
// within an allowance per owner that operations give back when they are complete everywhere, so
// what an owner must keep before its own call is bounded. The sum of what is granted and not folded
// is bounded over all operations in flight, which bounds both staging memory and the burst that
// meets at the owner's switch port; while the multicast lane receives, grants are paced
// (protocol/ingress_share.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "collective/group_core.h"

namespace mcast {
namespace {

constexpr size_t kQueueLimit = 128u << 10;  // bytes waiting for one owner's connection
constexpr int kSegmentsPerPoll = 8;         // then the receive side gets its turn
constexpr Sequence kOffersAhead = 64;       // operations whose inputs are offered to neighbours
// A rank whose memory cannot be read any more has told everybody why, or its connections end.
constexpr Nanos kRefusedPatience = kSecond;

// All that one member may send to another before that has made the call: unasked contributions,
// offers, and a grant for each segment that may be outstanding, or asked for a step ahead of the
// others. Results and takings wait for what only the call sends.
static_assert(UnaskedAccount::kMost + early_cost(wire::kReduceHead + kUnaskedBlock) +
                      kOffersAhead * early_cost(wire::kReduceOfferSize) +
                      2 * kMostLookahead * early_cost(wire::kReduceGrantSize) <=
                  EarlyReductions::kMost,
              "a correct member could overflow the store");

}  // namespace

void GroupCore::adopt_path(Path path, const std::string& reason) {
  path_ = path;
  path_reason_ = reason;
}

void GroupCore::measure_ingress(Nanos now) {
  ingress_.update(params_.multicast_arrived ? params_.multicast_arrived->load() : 0, now);
}

void GroupCore::start_reduce(Operation& op, Nanos now) {
  for (const EarlyReductions::Kept& e : early_reduce_.take(op.post.sequence)) {
    on_reduce_frame(e.header, e.body, now);
    if (failed()) return;
  }
}

bool GroupCore::reduce_complete(const Operation& op) const {
  const ReduceRun& run = *op.reduce;
  if (op.plan.way == ReduceWay::kOneStep) return true;
  if (!run.owner->complete() || !run.sender->done()) return false;
  if (run.host && !(run.acknowledged && run.host->all_taken())) return false;
  if (op.plan.way != ReduceWay::kToRoot) return true;
  if (op.plan.descriptor.root != self_) return run.result_sent == run.length(self_);
  for (uint32_t m = 0; m < size_; m++) {
    if (m != self_ && run.collected[m] < run.length(static_cast<Member>(m))) return false;
  }
  return true;
}

bool GroupCore::pump_reduce(Operation& op, Nanos now) {
  const bool arrived = op.reduce->refresh_own();
  if (!op.reduce->owner) {
    if (arrived) keep_waiting(now);
    return false;
  }
  bool more = false;
  grant_segments(op);
  if (op.reduce->host) {
    offer_input(op);
    contribute_own(op, more);
  }
  send_contributions(op, more, now);
  if (op.reduce->host) {
    settle_inputs(op, now);
    if (failed()) return false;
  }
  contribution_progress(op, now);
  if (!op.local_complete && op.plan.way == ReduceWay::kToRoot) {
    send_result(op, more);
    check_local(op, now);
  }
  return more;
}

void GroupCore::send_contributions(Operation& op, bool& more, Nanos now) {
  ReduceRun& run = *op.reduce;
  const size_t segment_bytes = op.plan.segment;
  const auto length = [&](Member owner, uint32_t segment) {
    return std::min(segment_bytes, run.length(owner) - segment * segment_bytes);
  };
  const auto cost = [](size_t payload) { return early_cost(wire::kReduceHead + payload); };
  const bool oldest = op.post.sequence == ops_.base();
  const auto can = [&](Member owner, uint32_t segment) {
    const size_t bytes = length(owner, segment);
    if (!run.readable(owner, segment * segment_bytes + bytes)) return false;
    if (op.plan.unasked && !unasked_.room(owner, op.post.sequence, cost(bytes), oldest)) {
      return false;
    }
    return port_.queued(owner, Channel::kReduce) < kQueueLimit;
  };
  for (int i = 0;; i++) {
    const auto next = run.sender->next(can);
    if (!next) return;
    if (i == kSegmentsPerPoll) {
      more = true;
      return;
    }
    const size_t bytes = length(next->owner, next->segment);
    const auto payload = run.payload(next->owner, next->segment * segment_bytes, bytes);
    if (!payload) return;
    wire::Writer head;
    wire::put_reduce_head(head, next->segment, run.factor());
    send_frame(next->owner, Channel::kReduce, wire::FrameType::kReduceData, op.post.sequence,
               op.plan.hash, head.bytes(), *payload);
    counters_.add(Counter::reduce_bytes_sent, bytes);
    run.sender->sent(next->owner);
    if (op.first_byte == kNever) op.first_byte = now;
    op.last_byte = now;
    if (op.plan.unasked) {
      unasked_.charge(next->owner, op.post.sequence, cost(bytes));
      run.unasked[next->owner] += cost(bytes);
    }
  }
}

// Where ranks of a host fold first: our input is there for them.
void GroupCore::offer_input(Operation& op) {
  ReduceRun& run = *op.reduce;
  // Not for all that are posted: a neighbour that is behind keeps what comes early.
  if (run.offered || op.post.sequence - ops_.base() >= kOffersAhead || !run.all_readable()) return;
  run.offered = true;
  wire::Writer body;
  wire::put_reduce_offer(body, run.host->offer());
  for (const Member m : run.host->others()) {
    send_frame(m, Channel::kReduce, wire::FrameType::kReduceOffer, op.post.sequence, op.plan.hash,
               body.bytes());
  }
}

// We have read theirs, or cannot.
void GroupCore::settle_inputs(Operation& op, Nanos now) {
  ReduceRun& run = *op.reduce;
  if (!run.acknowledged && run.host->all_offered() && run.sender->done() &&
      run.owner->contributed() == run.owner->segments()) {
    run.acknowledged = true;
    for (const Member m : run.host->others()) {
      send_frame(m, Channel::kReduce, wire::FrameType::kReduceTaken, op.post.sequence,
                 op.plan.hash);
    }
  }
  if (const auto who = run.host->refused()) {
    if (run.refused_until == kNever) run.refused_until = now + kRefusedPatience;
    if (now < run.refused_until) return;
    fail(Status(Code::kPeerLost, "rank " + std::to_string(*who) +
                                     " is lost (its memory cannot be read); look at its log for "
                                     "the first error"),
         *who, now);
  }
}

// What this host contributes to our own block.
void GroupCore::contribute_own(Operation& op, bool& more) {
  ReduceRun& run = *op.reduce;
  ReduceOwner& owner = *run.owner;
  for (int i = 0; owner.contributed() < owner.granted(); i++) {
    const size_t at = owner.contributed() * op.plan.segment;
    const size_t bytes = std::min(op.plan.segment, run.length(self_) - at);
    if (!run.readable(self_, at + bytes)) return;
    if (i == kSegmentsPerPoll) {
      more = true;
      return;
    }
    const auto payload = run.payload(self_, at, bytes);
    if (!payload) return;
    owner.contribute(*payload);
  }
}

void GroupCore::send_result(Operation& op, bool& more) {
  ReduceRun& run = *op.reduce;
  const Member root = op.plan.descriptor.root;
  if (root == self_) return;
  const uint64_t end = run.owner->final_bytes();
  for (int i = 0; run.result_sent < end; i++) {
    if (port_.queued(root, Channel::kReduce) >= kQueueLimit) return;
    if (i == kSegmentsPerPoll) {
      more = true;
      return;
    }
    const size_t bytes = std::min<uint64_t>(kMaxSegment, end - run.result_sent);
    wire::Writer head;
    head.put<uint64_t>(run.result_sent);
    send_frame(root, Channel::kReduce, wire::FrameType::kReduceResult, op.post.sequence,
               op.plan.hash, head.bytes(), run.result().bytes().subspan(run.result_sent, bytes));
    counters_.add(Counter::reduce_bytes_sent, bytes);
    run.result_sent += bytes;
  }
}

// Contributors are granted in turn, each several segments at a time, as soon as so many are free of
// all that may be outstanding: so grants are few, and what a folded segment makes room for is asked
// for at once.
void GroupCore::grant_segments(Operation& op) {
  ReduceRun& run = *op.reduce;
  ReduceOwner& owner = *run.owner;
  const auto others = static_cast<uint32_t>(run.contributors().size() - 1);
  if (others == 0 || (owner.granted() == owner.segments() && run.granted == others)) return;
  const uint32_t most = std::max(2u, op.plan.lookahead / std::max(1u, port_.busy_groups()));
  uint64_t outstanding = 0, in_flight = 0;  // contributions
  for (const Sequence s : ops_.busy()) {
    const Operation* const o = ops_.find(s);
    if (!o->reduce || !o->reduce->owner || o->plan.unasked) continue;
    const ReduceOwner& earlier = *o->reduce->owner;
    outstanding += o->reduce->asked - uint64_t{earlier.folded()} * others;
    in_flight += o->reduce->asked - earlier.arrived();
    if (o == &op) break;
    // A rank may wait for this one before it posts ours: ours must not take its room.
    if (earlier.granted() < earlier.segments() || o->reduce->granted < others) return;
  }
  const uint64_t window = ingress_.window(static_cast<uint64_t>(most) * others);
  for (;;) {
    const bool next_turn = run.granted == others;
    uint32_t step = owner.granted() - run.granted_before;
    if (next_turn) {
      // Little by little while multicast arrives: it goes as fast as the slowest receiver, and a
      // burst would slow it.
      step = std::min(ingress_.pacing() && most > 2 ? 1 : grant_step(most, op.plan.segment),
                      owner.segments() - owner.granted());
      if (step == 0) return;
    }
    // A turn that began when more was allowed goes on: it may be all that the owner waits for.
    if (outstanding + step > uint64_t{std::max(most, step)} * others) return;
    if (in_flight >= window) {
      if (ingress_.pacing() && !std::exchange(run.held, true)) {
        counters_.add(Counter::grant_waits);
      }
      return;
    }
    run.held = false;
    if (next_turn) {
      owner.grant(owner.granted() + step);
      run.granted = 0;
    }
    send_grant(op);
    outstanding += step;
    in_flight += step;
  }
}

// Asks the next contributor for what has been granted.
void GroupCore::send_grant(Operation& op) {
  ReduceRun& run = *op.reduce;
  const Member to = run.next_asked(run.granted);
  wire::Writer body;
  body.put<uint32_t>(run.owner->granted());
  send_frame(to, Channel::kReduce, wire::FrameType::kReduceGrant, op.post.sequence, op.plan.hash,
             body.bytes());
  run.granted++;
  run.asked += run.owner->granted() - run.granted_before;
  if (run.granted + 1 == run.contributors().size()) run.granted_before = run.owner->granted();
}

// Completed end of the own block: output 0 of a reduce_scatter, output `self` of an all_reduce.
void GroupCore::publish_result(Operation& op) {
  const uint64_t before = op.completed, after = op.reduce->completed();
  if (after == before) return;
  const bool scatter = op.plan.way == ReduceWay::kScatter;
  if (!scatter && !op.reduce->lands(self_)) return;
  op.completed = after;
  op.post.raise_completed(scatter ? 0 : self_, before, after, op.reduce->length(self_));
}

void GroupCore::contribution_progress(Operation& op, Nanos now) {
  op.reduce->publish();
  if (op.post.on_completed) publish_result(op);
  if (!op.local_complete) check_local(op, now);
}

void GroupCore::broke_reduce(const Frame& header, const char* what, Nanos now) {
  counters_.add(Counter::malformed);
  fail(Status(Code::kInternal, "rank " + std::to_string(header.member) +
                                   " broke the protocol of operation " +
                                   std::to_string(header.sequence) + ": " + what),
       header.member, now);
}

void GroupCore::on_reduce_frame(const Frame& header, ConstBytes body, Nanos now) {
  Operation* op = find(header.sequence);
  if (op == nullptr) {
    if (ops_.slot(header.sequence) != nullptr) {
      if (agrees(header.member, header.sequence, header.argument)) counters_.add(Counter::stale);
      return;
    }
    if (header.sequence < ops_.base()) {
      counters_.add(Counter::stale);
      return;
    }
    if (header.type == wire::FrameType::kReduceTaken) {
      return broke_reduce(header, "an input was taken that was not offered", now);
    }
    if (header.type == wire::FrameType::kReduceResult) {
      return broke_reduce(header, "a result of what it has not got from here", now);
    }
    if (!early_allowed(header, now)) return;
    if (!early_reduce_.keep(header, body)) {
      broke_reduce(header, "more was sent ahead than is allowed", now);
    }
    return;
  }
  if (!agrees(header.member, header.sequence, header.argument)) return;
  ops_.touch(*op);
  if (!op->reduce) return broke_reduce(header, "a reduction's frame", now);
  if (!op->reduce->owner || op->local_complete) {
    counters_.add(Counter::stale);
    return;
  }
  op->last_byte = now;
  op->first_byte = std::min(op->first_byte, now);
  switch (header.type) {
    case wire::FrameType::kReduceOffer:
    case wire::FrameType::kReduceTaken:
      return on_reduce_offer(*op, header, body, now);
    case wire::FrameType::kReduceGrant:
      return on_reduce_grant(*op, header, body, now);
    case wire::FrameType::kReduceData:
      return on_reduce_data(*op, header, body, now);
    default:
      return on_reduce_result(*op, header, body, now);
  }
}

void GroupCore::on_reduce_offer(Operation& op, const Frame& header, ConstBytes body, Nanos now) {
  std::optional<HostInputs>& host = op.reduce->host;
  if (header.type == wire::FrameType::kReduceTaken) {
    if (!host || !op.reduce->offered || !body.empty() || !host->on_taken(header.member)) {
      return broke_reduce(header, "an input was taken that it has no part in", now);
    }
    return check_local(op, now);
  }
  wire::ReduceOffer offer;
  if (!host || !wire::parse_reduce_offer(body, offer) || !host->on_offer(header.member, offer)) {
    broke_reduce(header, "an input offered that is not wanted", now);
  }
}

void GroupCore::on_reduce_grant(Operation& op, const Frame& header, ConstBytes body, Nanos now) {
  wire::Reader in(body);
  const auto end = in.get<uint32_t>();
  if (!in.done() || !op.reduce->sender->on_grant(header.member, end)) {
    broke_reduce(header, "a grant beyond the block", now);
  }
}

void GroupCore::on_reduce_data(Operation& op, const Frame& header, ConstBytes body, Nanos now) {
  wire::ReduceData data;
  const auto from = op.reduce->contributor(header.member);
  if (!from || !wire::parse_reduce_data(body, data) ||
      !op.reduce->owner->accept(*from, data.segment, data.factor, data.payload)) {
    return broke_reduce(header, "a contribution that was not asked for", now);
  }
  counters_.add(Counter::reduce_bytes_received, data.payload.size());
  if (op.reduce->owner->complete()) contribution_progress(op, now);
}

void GroupCore::on_reduce_result(Operation& op, const Frame& header, ConstBytes body, Nanos now) {
  wire::Reader in(body);
  const auto offset = in.get<uint64_t>();
  ReduceRun& run = *op.reduce;
  if (!in.ok() || op.plan.way != ReduceWay::kToRoot || op.plan.descriptor.root != self_ ||
      offset != run.collected[header.member] ||
      in.remaining() > run.length(header.member) - offset) {
    return broke_reduce(header, "a result out of place", now);
  }
  const ConstBytes payload = in.rest();
  std::memcpy(run.destination(header.member).data() + offset, payload.data(), payload.size());
  run.collected[header.member] += payload.size();
  counters_.add(Counter::reduce_bytes_received, payload.size());
  check_local(op, now);
}

}  // namespace mcast
