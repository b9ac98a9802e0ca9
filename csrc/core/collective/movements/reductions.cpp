// Reductions by contributions to owners.
//   1. Every member owns one block. It grants the others a few segments at a time
//      (reduce_grants.cpp), and each sends its contributions to them. Small blocks are sent
//      unasked, within an allowance per owner that operations return when they are complete
//      everywhere. So the data that an owner must store before its own call is limited.
//   2. The owner folds contributions in the order of the setting `fold`, so the bits of the result
//      are the same on all ranks and in all runs.
//   3. The result is the owner's (reduce_scatter), is multicast as it becomes final (all_reduce),
//      or is sent to the root (reduce).
// Cost, n bytes of input, P members (hosts, if ranks of one host fold first): every link sends and
// receives n - n / P; an all_reduce sends n / P more and receives n - n / P more, by multicast. (A
// small all_reduce has no owners: one_step.cpp.)
//
// The sum of segments that are granted and not folded is limited over all operations in flight,
// which limits both staging memory and the burst that meets at the owner's switch port. While the
// multicast lane receives, grants are paced (protocol/ingress_share.h).
#include "collective/movements/reductions.h"

#include <algorithm>
#include <utility>

#include "base/coverage.h"
#include "base/errors.h"
#include "protocol/early_frames.h"
#include "wire/aggregation.h"

namespace mcast {
namespace {

constexpr size_t kOwnerQueueLimit = 128u << 10;  // bytes waiting for one owner's connection
constexpr int kSegmentsPerTurn = 8;              // then the receive side is polled
constexpr Sequence kOffersAhead = 64;  // operations whose inputs are offered to neighbours
// A rank whose memory can no longer be read has informed all members why, or its connections end.
constexpr Nanos kRefusedPatience = kSecond;

// All that one member may send to another before that has made the call: unasked contributions,
// offers, and a grant for each segment that may be outstanding, or granted a step ahead of the
// others, with the announcement of segments taken over from stations. Results and Taken frames are
// sent only after the other member's call.
static_assert(UnaskedAccount::kMost + early_cost(wire::kReduceHead + kUnaskedBlock) +
                      kOffersAhead * early_cost(wire::kReduceOfferSize) +
                      2 * kMostLookahead * early_cost(wire::kReduceGrantSize) +
                      2 * kMostLookahead * early_cost(wire::kDivertHead + kMostDiverted * 8) <=
                  EarlyFrames::kMostReductions / 2,  // exchanges have the rest
              "a correct member could overflow the store");

}  // namespace

void Reductions::start(Operation& op, Nanos) {
  op.reduce = std::make_unique<ReduceRun>(op.plan, *op.post.reduce, op.post.sequence, g_.reductions,
                                          g_.fold ? g_.fold->share_of(op) : nullptr);
  op.post.outputs = op.reduce->stream_outputs();
  if (!op.post.outputs.empty()) op.post.input = op.post.outputs[g_.self];
}

bool Reductions::busy(const Operation& op) const {
  if (!op.local_complete) return true;
  return op.reduce->dealt && !op.finished && op.reduce->sender->pending();
}

Nanos Reductions::deadline(const Operation& op) const {
  return op.local_complete ? kNever : op.reduce->inputs.refused_until;
}

// The account that contributions are charged to gets its bytes back with the release.
bool Reductions::settled(const Operation& op) const {
  return op.plan.reduce.way == ReduceWay::kOneStep;
}

bool Reductions::complete(const Operation& op) const {
  const ReduceRun& run = *op.reduce;
  if (op.plan.reduce.way == ReduceWay::kOneStep) return true;
  if (!run.owner->complete()) return false;
  // An operation with stations ends when all members have all data, which implies that all
  // contributions were folded.
  if (run.dealt) return true;
  if (!run.sender->done()) return false;
  if (run.host && !(run.inputs.acknowledged && run.host->all_taken())) return false;
  if (op.plan.reduce.way != ReduceWay::kToRoot) return true;
  if (op.plan.descriptor.root != g_.self) return run.to_root.sent == run.length(g_.self);
  for (uint32_t m = 0; m < g_.size; m++) {
    if (m != g_.self && run.to_root.collected[m] < run.length(static_cast<Member>(m))) return false;
  }
  return true;
}

void Reductions::give_back(const Operation& op) {
  for (uint32_t m = 0; m < g_.size; m++) {
    unasked_.give_back(static_cast<Member>(m), op.reduce->unasked[m]);
  }
}

bool Reductions::pump(Operation& op, Nanos now, bool) {
  if (op.local_complete && (!op.reduce->dealt || op.finished)) return false;
  const bool arrived = op.reduce->refresh_own();
  if (!op.reduce->owner) {
    if (arrived) small_.keep_waiting();
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
    if (g_.failed()) return false;
  }
  contribution_progress(op);
  if (!op.local_complete && op.plan.reduce.way == ReduceWay::kToRoot) {
    send_result(op, more);
    g_.may_be_complete(op);
  }
  return more;
}

void Reductions::send_contributions(Operation& op, bool& more, Nanos now) {
  ReduceRun& run = *op.reduce;
  const size_t segment_bytes = op.plan.reduce.segment;
  const auto length = [&](Member owner, uint32_t segment) {
    return std::min(segment_bytes, run.length(owner) - segment * segment_bytes);
  };
  const auto cost = [](size_t payload) { return early_cost(wire::kReduceHead + payload); };
  const bool oldest = op.post.sequence == g_.ops.base();
  const auto target = [&](uint32_t list) {
    return list < g_.size ? static_cast<Member>(list) : run.dealt->members[list - g_.size];
  };
  const auto can = [&](uint32_t list, const ReduceSender::Entry& entry) {
    const auto& [owner, segment, number] = entry;
    const size_t bytes = length(owner, segment);
    if (!run.readable(owner, segment * segment_bytes + bytes)) return false;
    if (op.plan.reduce.unasked &&
        !unasked_.room(owner, op.post.sequence, cost(run.contribution_bytes(bytes)), oldest)) {
      return false;
    }
    const bool full = g_.port.queued(target(list), Channel::kReduce) >= kOwnerQueueLimit;
    if (full) MCAST_COVER(contribution_queue_full);
    return !full;
  };
  for (int i = 0;; i++) {
    const auto next = run.sender->next(can);
    if (!next) return;
    if (i == kSegmentsPerTurn) {
      more = true;
      return;
    }
    const auto& [owner, segment, number] = next->entry;
    const auto payload = run.payload(owner, segment * segment_bytes, length(owner, segment));
    if (!payload) return;
    const size_t bytes = payload->size();
    wire::Writer head;
    wire::put_reduce_head(head, number, run.factor());
    g_.send_frame(target(next->list), Channel::kReduce, wire::FrameType::kReduceData,
                  op.post.sequence, op.plan.hash, head.bytes(), *payload);
    g_.counters.add(Counter::reduce_bytes_sent, bytes);
    if (next->list >= g_.size) g_.counters.add(Counter::agg_bytes_sent, bytes);
    run.sender->sent(next->list);
    if (op.first_byte == kNever) op.first_byte = now;
    op.last_byte = now;
    if (op.plan.reduce.unasked) {
      unasked_.charge(owner, op.post.sequence, cost(bytes));
      run.unasked[owner] += cost(bytes);
    }
  }
}

// If ranks of a host fold first: offers our input to them.
void Reductions::offer_input(Operation& op) {
  ReduceRun& run = *op.reduce;
  // Not for all posted operations: a neighbour that is behind must store early frames.
  if (run.inputs.offered || op.post.sequence - g_.ops.base() >= kOffersAhead || !run.all_readable())
    return;
  run.inputs.offered = true;
  wire::Writer body;
  wire::put_reduce_offer(body, run.host->offer());
  for (const Member m : run.host->others()) {
    g_.send_frame(m, Channel::kReduce, wire::FrameType::kReduceOffer, op.post.sequence,
                  op.plan.hash, body.bytes());
  }
}

// Handles the end of reading the others' inputs, or the failure to read them.
void Reductions::settle_inputs(Operation& op, Nanos now) {
  ReduceRun& run = *op.reduce;
  // (With stations, inputs may be read until the release, which implies that no rank reads them any
  // more.)
  if (!run.dealt && !run.inputs.acknowledged && run.host->all_offered() && run.sender->done() &&
      run.owner->contributed() == run.owner->listed()) {
    run.inputs.acknowledged = true;
    for (const Member m : run.host->others()) {
      g_.send_frame(m, Channel::kReduce, wire::FrameType::kReduceTaken, op.post.sequence,
                    op.plan.hash);
    }
  }
  if (const auto who = run.host->refused()) {
    if (run.inputs.refused_until == kNever) run.inputs.refused_until = now + kRefusedPatience;
    if (now < run.inputs.refused_until) return;
    g_.fail(make_error<ErrorId::rank_lost>(*who, "its memory cannot be read"), *who);
  }
}

// Adds this host's contribution to our own block.
void Reductions::contribute_own(Operation& op, bool& more) {
  ReduceRun& run = *op.reduce;
  ReduceOwner& owner = *run.owner;
  for (int i = 0; owner.contributed() < owner.granted(); i++) {
    const size_t at = owner.segment_at(owner.contributed()) * op.plan.reduce.segment;
    const size_t bytes = std::min(op.plan.reduce.segment, run.length(g_.self) - at);
    if (!run.readable(g_.self, at + bytes)) return;
    if (i == kSegmentsPerTurn) {
      more = true;
      return;
    }
    const auto payload = run.payload(g_.self, at, bytes);
    if (!payload) return;
    owner.contribute(*payload);
  }
}

void Reductions::send_result(Operation& op, bool& more) {
  ReduceRun& run = *op.reduce;
  const Member root = op.plan.descriptor.root;
  if (root == g_.self) return;
  const uint64_t end = run.owner->final_bytes();
  for (int i = 0; run.to_root.sent < end; i++) {
    if (g_.port.queued(root, Channel::kReduce) >= kOwnerQueueLimit) {
      MCAST_COVER(result_queue_full);
      return;
    }
    if (i == kSegmentsPerTurn) {
      more = true;
      return;
    }
    const size_t bytes = std::min<uint64_t>(kMaxSegment, end - run.to_root.sent);
    wire::Writer head;
    head.put<uint64_t>(run.to_root.sent);
    g_.send_frame(root, Channel::kReduce, wire::FrameType::kReduceResult, op.post.sequence,
                  op.plan.hash, head.bytes(),
                  run.result().bytes().subspan(run.to_root.sent, bytes));
    g_.counters.add(Counter::reduce_bytes_sent, bytes);
    run.to_root.sent += bytes;
  }
}

// Completed end of our own block: output 0 of a reduce_scatter, output `self` of an all_reduce.
void Reductions::publish_result(Operation& op) {
  const uint64_t before = op.reduce->completed_end, after = op.reduce->completed();
  if (after == before) return;
  const bool scatter = op.plan.reduce.way == ReduceWay::kScatter;
  if (!scatter && !op.reduce->lands(g_.self)) return;
  op.reduce->completed_end = after;
  op.post.raise_completed(scatter ? 0 : g_.self, before, after, op.reduce->length(g_.self));
}

void Reductions::drop_station(Operation& op, uint16_t station) {
  ReduceRun& run = *op.reduce;
  FoldShare& share = *run.dealt;
  if (share.off[station]) return;
  share.off[station] = true;
  run.sender->drop(g_.size + station);
  for (uint32_t i = 0; i < share.deal.segments(g_.self); i++) {
    if (share.deal.executor(g_.self, i) != station || !run.owner->awaits(i)) continue;
    run.owner->take_over(i);
    share.diverted.push_back(station);
    g_.counters.add(Counter::agg_diverted);
  }
}

void Reductions::excuse(Operation& op, const wire::PartialResult& partial) {
  op.reduce->partial = partial;
  op.reduce->owner->excuse(partial.ranks(), partial.contributors);
  op.post.note_contributors(partial.contributors);
  g_.ops.touch(op);
  contribution_progress(op);
}

void Reductions::contribution_progress(Operation& op) {
  op.reduce->publish();
  if (op.post.on_completed) publish_result(op);
  if (!op.local_complete) g_.may_be_complete(op);
}

}  // namespace mcast
