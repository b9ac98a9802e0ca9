// The life of an operation. post() makes the plan and the protocol machines and replays data that
// arrived early. Datagrams and frames then advance it until it is complete locally: all data
// received, and the caller's memory no longer needed for sending. Small operations end then,
// because their root keeps a copy for repair, and release their machines. Large ones keep theirs
// until the control tree has released them, so that every rank can serve as a donor. Released
// operations leave the front of the queue in order. An operation that ends queues its callback.
#include "collective/group_core.h"

#include <algorithm>

#include "base/coverage.h"
#include "base/streaming_copy.h"
#include "collective/error_text.h"

namespace mcast {
namespace {

// Most operations that are not complete everywhere; later ones wait to be started. Other members
// store early data for as many (early_allowed).
constexpr Sequence kMostUnreleased = 1u << 18;

}  // namespace

GroupCore::GroupCore(GroupParams params, Port& port, Counters& counters)
    : g_(std::move(params), port, counters),
      sources_(g_),
      small_(g_, sources_),
      membership_(g_),
      path_(g_, membership_),
      placing_(g_),
      reception_(g_, small_, path_, placing_, sources_),
      repair_(g_, reception_, small_, streams_),
      multicast_(g_, small_, reception_, sources_),
      unasked_(g_.size),
      ingress_(g_.params.policy),
      streams_({g_, small_, sources_, path_, placing_, reception_, repair_, multicast_}),
      ring_(g_, sources_),
      reductions_(g_, small_, unasked_, ingress_),
      exchanges_(g_, unasked_, ingress_),
      messages_(g_, g_.message_facts(), ingress_),
      fold_(g_.params.fold != nullptr ? g_.params.fold(g_, reductions_) : nullptr),
      inquiry_(g_, sources_),
      partial_(g_, reductions_),
      early_(g_.size),
      completion_(g_) {
  g_.fold = fold_.get();
}

void GroupCore::start_probe(Nanos now, std::function<void(const Status&)> ready) {
  path_.creation().start(now, std::move(ready));
  settle(now);
}

void GroupCore::adopt_path(Path path, const std::string& reason, bool no_multicast) {
  g_.path.first = path;
  g_.path.no_multicast = no_multicast;
  g_.path.reason = reason;
  if (g_.state == GroupState::kNew) g_.state = GroupState::kOpen;
}

void GroupCore::learn_path(Path path, Nanos now) {
  if (path == Path::kUnknown || g_.path.first != Path::kUnknown || g_.failed()) return;
  const std::string reason = "reported by a rank that has failed since";
  if (!path_.creation().under_way()) return adopt_path(path, reason);
  // (If multicast is required and impossible, the group fails with the reason that it receives.)
  if (path == Path::kRing && g_.params.multicast.required) return;
  path_.creation().decide(path == Path::kMulticast, reason, now);
}

// Admits the post if there is room and no cut-over is pending. If a rank has left, the cut-over can
// never complete, so it is not waited for: the operation will fail and say why.
bool GroupCore::may_admit(const Post& post) const {
  const bool held = g_.switching() || path_.rates().holds(post.sequence);
  return g_.ops.next() - g_.ops.base() < kMostUnreleased &&
         (!held || membership_.misses(post.sequence));
}

void GroupCore::post(Post post, Nanos now) {
  if (!post.excused() && partial_.holds(post.sequence)) {
    partial_.adopt(std::move(post));
    partial_.collect();
  } else if (!g_.failed() && (!g_.deferred.empty() || !may_admit(post))) {
    MCAST_COVER(post_waits_for_a_line);
    inquiry_.on_deferred(post);
    g_.deferred.push_back(std::move(post));
  } else {
    admit(std::move(post), now);
  }
  settle(now);
}

void GroupCore::post_message(MessagePost post, Nanos now) {
  messages_.post(std::move(post), now);
  settle(now);
}

// Admits operations that were deferred by a cut-over or by the limit on unreleased operations.
void GroupCore::admit_deferred(Nanos now) {
  while (!g_.deferred.empty() && !g_.failed() && may_admit(g_.deferred.front())) {
    Post post = std::move(g_.deferred.front());
    g_.deferred.pop_front();
    admit(std::move(post), now);
  }
}

void GroupCore::admit(Post post, Nanos now) {
  g_.counters.add(Counter::ops_posted);
  auto owned = std::make_unique<Operation>();
  Operation& op = *owned;
  op.post = std::move(post);
  op.self = g_.self;
  op.plan = make_plan(op.post.descriptor, g_.params.agreed,
                      op.post.reduce ? element_size(op.post.reduce->element) : 1);
  if (op.post.delegated) {
    op.plan.roots = op.plan.chunks = 0;
    op.plan.block = 0;
    op.plan.small = op.plan.large = false;
  }
  op.deadline = op.post.deadline();
  if (op.deadline >= g_.leaving.limit) {
    g_.leaving.limit = op.deadline;
    g_.leaving.timeout = op.post.timeout;
  }
  g_.ops.push(std::move(owned));
  small_.on_post(op, ahead_of(op));
  g_.unfinished++;
  if (g_.failed()) {
    finish(op, g_.failure().with_context(g_.op_text(op.post, now)), now);
  } else if (may_start(op)) {
    start(op, now);
  }
}

// Returns false if the group has failed.
bool GroupCore::may_start(const Operation& op) {
  const Sequence sequence = op.post.sequence;
  if (!membership_.all_stay_for(sequence)) return false;
  const uint64_t most = max_block(g_.params.agreed);
  if (op.post.descriptor.bytes > most) {
    g_.fail(Status(Code::kInvalidArgument,
                   "a block of " + std::to_string(op.post.descriptor.bytes) +
                       " bytes is too long: at most " + std::to_string(most) +
                       " bytes with chunks of " + std::to_string(g_.params.agreed.chunk)),
            g_.self);
    return false;
  }
  completion_.on_post(sequence, op.plan.hash);
  return true;
}

// The only place where the group looks at the kind of an operation.
Movements GroupCore::movements_of(const Post& post, const Plan& plan) {
  Movements movements;
  if (post.delegated || plan.descriptor.kind == wire::Kind::kBarrier) movements.add(no_data_);
  if (post.reduce && plan.descriptor.bytes > 0) movements.add(reductions_);
  if (g_.size == 1) return movements;
  if (post.exchange) movements.add(exchanges_);
  if (plan.trivial()) return movements;
  if (g_.path.by_ring(post.sequence)) {
    movements.add(ring_);
  } else {
    movements.add(streams_);
  }
  return movements;
}

// Chunks that may reach members before they post the operation.
Chunk GroupCore::ahead_of(const Operation& op) const {
  return g_.path.by_ring(op.post.sequence) ? 0 : op.plan.ahead();
}

void GroupCore::start(Operation& op, Nanos now) {
  const bool alone = g_.size == 1;
  if (op.plan.large && !alone) g_.large_in_flight++;
  op.movements = movements_of(op.post, op.plan);
  for (Movement* const movement : op.movements) {
    movement->start(op, now);
    op.needs_release = op.needs_release || (!alone && movement->until_released(op));
  }
  if (fold_) fold_->start(op);
  replay_early(op.post.sequence, now);
  for (Movement* const movement : op.movements) {
    if (!g_.failed()) movement->begin(op, now);
  }
  g_.ops.touch(op);
  g_.may_be_complete(op);
}

void GroupCore::check_complete(Operation& op, Nanos now) {
  if (op.local_complete) return;
  for (const Movement* const movement : op.movements) {
    if (!movement->complete(op)) return;
  }
  op.local_complete = true;
  for (Movement* const movement : op.movements) movement->on_complete(op, now);
  if (!op.needs_release) finish(op, {}, now);
  advance_complete(now);
}

void GroupCore::arrived(Sequence sequence, Nanos now) {
  if (g_.failed()) return;
  if (Operation* op = g_.find(sequence)) {
    g_.ops.touch(*op);
    g_.may_be_complete(*op);
  }
  settle(now);
}

void GroupCore::advance_complete(Nanos now) {
  Sequence end = completion_.own_complete();
  // If the allowance for chunks ahead of credit runs low, roots and senders wait for the release.
  bool urgent = small_.filling();
  for (const OperationQueue::Entry* at = g_.ops.entry(end);
       at != nullptr && (!at->op || at->op->local_complete); at = g_.ops.entry(end)) {
    if (at->op) {
      urgent = urgent || at->op->needs_release;
      for (const Movement* const movement : at->op->movements) {
        urgent = urgent || movement->urgent(*at->op);
      }
    }
    end++;
  }
  completion_.complete_own(end, urgent, now);
}

void GroupCore::finish(Operation& op, const Status& status, Nanos now) {
  if (op.finished) return;
  op.finished = true;
  streaming_fence();  // completes the stores to the outputs: the memory is the caller's again
  g_.unfinished--;
  if (op.plan.large && g_.size > 1) g_.large_in_flight--;
  g_.counters.add(status.ok() ? Counter::ops_completed : Counter::ops_failed);
  if (g_.params.trace) {
    g_.params.trace->record(trace_event(op, op.plan.descriptor, g_.params, now, status.ok()));
  }
  if (status.ok()) {
    path_.rates().on_finished(op, now);
    if (fold_) fold_->on_finished(op, now);
  }
  if (op.post.moments) *op.post.moments = {op.first_byte, op.last_byte, now};
  for (Movement* const movement : op.movements) movement->drop_memory(op);
  // A remote read of unregistered memory would break the connection for every group: after a
  // failure some member may not know of it yet.
  for (auto& hold : std::exchange(op.grants, {})) {
    if (!status.ok()) g_.port.linger(std::move(hold));
  }
  Post post = std::exchange(op.post, Post{});
  op.post.sequence = post.sequence;
  op.post.descriptor = post.descriptor;
  op.post.posted = post.posted;
  if (placing_.hold(post, status)) return;
  if (post.done) g_.ended.emplace_back(std::move(post.done), status);
}

void GroupCore::release(Sequence end, Nanos now) {
  while (g_.ops.base() < end && !g_.ops.empty()) {
    const OperationQueue::Entry& oldest = *g_.ops.entry(g_.ops.base());
    if (!oldest.kept.empty()) small_.give_back(oldest.bytes);
    const std::unique_ptr<Operation> op = g_.ops.pop();
    if (!op) continue;
    for (Movement* const movement : op->movements) movement->give_back(*op);
    if (!op->finished) finish(*op, {}, now);
  }
  if (fold_) fold_->released(g_.ops.base());
  small_.on_released();
  repair_.on_released(g_.ops.base());
}

bool GroupCore::deliver() {
  if (g_.ended.empty()) return false;
  for (const auto& [done, status] : std::exchange(g_.ended, {})) done(status);
  partial_.collect();
  return !g_.ended.empty();
}

AggregationReport GroupCore::aggregation_report(Nanos now) const {
  AggregationReport report;
  if (fold_) fold_->report(report, now);
  report.partial = partial_.report();
  return report;
}

void GroupCore::close(Nanos now) {
  if (std::exchange(g_.leaving.closing, true) || g_.failed()) return;
  membership_.on_close();
  settle(now);
}

void GroupCore::leave(Nanos now) {
  membership_.leave();
  settle(now);
}

void GroupCore::on_peer_down(Member peer, const Status& why, bool graceful, Nanos now) {
  if (g_.is_station(peer)) {
    if (fold_ && !g_.failed()) fold_->on_down(peer, why);
  } else {
    membership_.on_peer_down(peer, why, graceful, now);
    messages_.on_peer_down(peer, graceful, now);
  }
  settle(now);
}

void GroupCore::on_flood(Nanos now) {
  path_.on_flood("the multicast address of rank " + std::to_string(g_.self) +
                     " is flooded, as another group of that rank has found",
                 now);
  settle(now);
}

void GroupCore::on_read(uint32_t token, ConstBytes bytes, Nanos now) {
  repair_.on_read(token, bytes, now);
  settle(now);
}

bool GroupCore::quiet() const {
  if (!placing_.idle() || messages_.unfinished() > 0) return false;
  return g_.failed() || (g_.ops.empty() && !path_.creation().under_way() && g_.deferred.empty());
}

bool GroupCore::confirmed_so_far() const {
  if (quiet() || g_.ops.empty()) return true;
  const Operation* const oldest = g_.ops.find(g_.ops.base());
  return oldest != nullptr && !oldest->finished;
}

}  // namespace mcast
