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
      repair_(g_, reception_, small_),
      multicast_(g_, small_, reception_, sources_),
      ring_(g_, sources_),
      reductions_(g_, small_),
      exchanges_(g_, reductions_.unasked(), reductions_.ingress()),
      messages_(g_, g_.message_facts(), reductions_.ingress()),
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
  const bool stands_in = post.reduce && post.reduce->excused;
  if (!stands_in && partial_.holds(post.sequence)) {
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
  const Sequence sequence = post.sequence;
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
  small_.on_post(op, g_.path.by_ring(sequence) ? 0 : op.plan.ahead());
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

void GroupCore::start(Operation& op, Nanos now) {
  const Sequence sequence = op.post.sequence;
  const bool alone = g_.size == 1;
  const bool barrier = op.plan.descriptor.kind == wire::Kind::kBarrier;
  const bool by_multicast = !op.plan.trivial() && !op.plan.small && !g_.path.by_ring(sequence);
  const bool reduces = op.post.reduce && op.post.descriptor.bytes > 0;
  auto share = reduces && fold_ ? fold_->share_of(op) : nullptr;
  op.needs_release = !alone && (barrier || op.post.delegated || by_multicast || share);
  if (op.plan.large && !alone) g_.large_in_flight++;
  if (reduces) {
    op.reduce = std::make_unique<ReduceRun>(op.plan, *op.post.reduce, sequence, g_.reductions,
                                            std::move(share));
    op.post.outputs = op.reduce->stream_outputs();
    if (!op.post.outputs.empty()) op.post.input = op.post.outputs[g_.self];
  }
  if (op.post.exchange && !alone) {
    op.exchange = std::make_unique<ExchangeRun>(op.plan.descriptor, *op.post.exchange, g_.self,
                                                g_.params.agreed.incast);
  }
  if (!op.plan.trivial() && !alone) start_blocks(op, now);
  if (fold_) fold_->start(op);
  replay_early(sequence, now);
  // Short blocks are sent before the call returns.
  if (op.exchange && !g_.failed()) exchanges_.begin(op, now);
  g_.ops.touch(op);
  g_.may_be_complete(op);
}

// Makes the state machines of the blocks, and applies data of them that arrived before the post.
void GroupCore::start_blocks(Operation& op, Nanos now) {
  const Plan& plan = op.plan;
  op.own.stream = op.stream_of(g_.self);
  op.receivers.reserve(plan.roots);
  op.flow.active = ActiveStreams(plan.roots);
  for (uint32_t stream = 0; stream < plan.roots; stream++) {
    op.receivers.emplace_back(plan.chunks, ReceiverParams{plan.tolerance, g_.params.alpha});
    if (op.own.stream == stream) op.receivers.back().set_all();
  }
  op.receiving = plan.roots - (op.own.stream ? 1 : 0);
  if (op.post.on_completed) op.final_to.assign(plan.roots, 0);
  sources_.start(op);
  if (g_.path.by_ring(op.post.sequence)) {
    ring_.start(op);
    return;
  }
  repair_.start(op);
  multicast_.start(op);
  if (plan.small && op.own.stream) small_.add(op);
  if (plan.small) small_.learn_sent(op, now);
  reception_.replay_staged(op, now);
  placing_.start(op);
}

void GroupCore::check_complete(Operation& op, Nanos now) {
  if (op.local_complete || op.receiving > 0 || (op.reduce && !reductions_.complete(op))) return;
  if (op.exchange && !op.exchange->complete()) return;
  if (!placing_.retired(op) || repair_.reading(op)) return;
  if (!sources_.verified(op)) return;
  if (op.post.delegated && !op.post.delegated->load(std::memory_order_acquire)) return;
  if (op.own.sender && op.plan.small && !op.own.started) return;  // still reads the caller's memory
  if (!ring_.forwarded(op)) return;
  op.local_complete = true;
  if (op.reduce) op.reduce->conclude();
  if (op.fetch) path_.judge(op, now);
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
    urgent = urgent || (at->op && (at->op->needs_release ||
                                   (at->op->exchange && reductions_.unasked().filling())));
    end++;
  }
  completion_.complete_own(end, urgent, now);
}

void GroupCore::finish(Operation& op, const Status& status, Nanos now) {
  if (op.finished) return;
  op.finished = true;
  sources_.end(op);
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
  // Their machines hold pointers into the caller's memory.
  if (op.reduce) op.reduce->drop_memory();
  if (op.exchange) op.exchange->drop_memory();
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
    small_.give_back(op->own.kept.size());
    if (op->reduce) reductions_.give_back(*op);
    if (op->exchange) exchanges_.give_back(*op);
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
