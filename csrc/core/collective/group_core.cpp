// The life of an operation. post() makes the plan and the protocol machines and replays what
// arrived early; datagrams and frames then move it until it is complete locally (everything
// received, nothing of the caller's needed for sending). Small operations deliver their result
// right there, since their root keeps a copy for repair, and give up their machines; large ones
// stay whole until the completion tree has released them, so that every rank can serve as a donor.
// Released operations leave the front of the queue in order. A turn visits what something happened
// to, what is due, and the oldest of those that may always have something to do.
#include "collective/group_core.h"

#include <algorithm>
#include <cstring>

#include "base/streaming_copy.h"
#include "collective/report.h"

namespace mcast {
namespace {

constexpr Nanos kReportDelay = 500 * kMicro;
// Operations that are not complete everywhere, at most; later ones wait to be started. Others keep
// what comes early for as many (early_allowed).
constexpr Sequence kMostUnreleased = 1u << 18;

std::vector<Member> watched_members(const Tree& tree, Member self, uint32_t size) {
  std::vector<Member> watched;
  if (size < 2) return watched;
  if (!tree.is_top(self)) watched.push_back(tree.parent(self));
  for (uint32_t c = 0; c < tree.children(self); c++) {
    watched.push_back(static_cast<Member>(tree.first_child(self) + c));
  }
  watched.push_back(static_cast<Member>((self + 1u) % size));
  watched.push_back(static_cast<Member>((self + size - 1u) % size));
  return watched;
}

}  // namespace

GroupCore::GroupCore(GroupParams params, Port& port, Counters& counters)
    : params_(std::move(params)),
      port_(port),
      counters_(counters),
      self_(params_.self),
      size_(params_.agreed.members),
      tree_(size_, params_.arity),
      reductions_{params_.host_of.empty() ? Hosts(size_) : Hosts(params_.host_of),
                  self_,
                  params_.read_host,
                  counters,
                  params_.tag,
                  {},
                  {}},
      ops_(params_.first_sequence),
      eager_(params_.staging, params_.first_sequence),
      sent_(size_, params_.alpha),
      repair_heard_(size_),
      staging_(params_.staging),
      completion_(tree_.children(self_), tree_.is_top(self_), kReportDelay, params_.first_sequence),
      liveness_(watched_members(tree_, self_, size_), params_.liveness_limit),
      early_reduce_(size_),
      unasked_(size_),
      ingress_(params_.policy),
      left_(size_, UINT32_MAX),
      gone_(size_),
      reachability_(size_),
      repairs_(size_) {
  if (size_ == 1) {
    path_ = Path::kLocal;
    path_reason_ = "one rank";
  }
}

void GroupCore::post(Post post, Nanos now) {
  const bool wait = frozen_ || !deferred_.empty() || ops_.next() - ops_.base() >= kMostUnreleased;
  if (wait && !failed()) {
    deferred_.push_back(std::move(post));
    return;
  }
  admit(std::move(post), now);
}

// What waited for a change of path or for room.
void GroupCore::admit_deferred(Nanos now) {
  while (!deferred_.empty() && !frozen_ && !failed() &&
         ops_.next() - ops_.base() < kMostUnreleased) {
    Post post = std::move(deferred_.front());
    deferred_.pop_front();
    admit(std::move(post), now);
  }
}

void GroupCore::admit(Post post, Nanos now) {
  counters_.add(Counter::ops_posted);
  const Sequence sequence = post.sequence;
  auto owned = std::make_unique<Operation>();
  Operation& op = *owned;
  op.post = std::move(post);
  op.self = self_;
  op.plan = make_plan(op.post.descriptor, params_.agreed,
                      op.post.reduce ? element_size(op.post.reduce->element) : 1);
  if (op.post.delegated) {
    op.plan.roots = op.plan.chunks = 0;
    op.plan.block = 0;
    op.plan.small = op.plan.large = false;
  }
  op.deadline =
      op.post.timeout >= kNever - op.post.posted ? kNever : op.post.posted + op.post.timeout;
  ops_.push(std::move(owned));
  const Chunk ahead = by_ring(sequence) ? 0 : std::min(op.plan.eager, op.plan.chunks);
  eager_.on_post(op.plan.roots *
                 EagerWindow::cost(ahead, std::min(ahead * op.plan.chunk, op.plan.block)));
  unfinished_++;
  if (failed()) {
    finish(op, failure_.with_context(op_text(op.post, now)), now);
    return;
  }
  if (!may_start(op, now)) return;
  const bool barrier = op.plan.descriptor.kind == wire::Kind::kBarrier;
  op.needs_release = size_ > 1 && (barrier || op.post.delegated ||
                                   (!op.plan.trivial() && !op.plan.small && !by_ring(sequence)));
  if (op.plan.large && size_ > 1) large_in_flight_++;
  if (op.post.reduce && op.post.descriptor.bytes > 0) {
    op.reduce = std::make_unique<ReduceRun>(op.plan, *op.post.reduce, sequence, reductions_);
    op.post.outputs = op.reduce->slots();
    if (!op.post.outputs.empty()) op.post.input = op.post.outputs[self_];
  }
  if (!op.plan.trivial() && size_ > 1) {
    start_streams(op, now);
    if (failed()) return;
  }
  if (op.reduce) {
    start_reduce(op, now);
    if (failed()) return;
  }
  ops_.touch(op);
  check_local(op, now);
}

// False: the group has failed.
bool GroupCore::may_start(const Operation& op, Nanos now) {
  const Sequence sequence = op.post.sequence;
  for (uint32_t m = 0; m < size_; m++) {
    if (left_[m] <= sequence) {
      fail(Status(Code::kClosed, "rank " + std::to_string(m) + " has left the group (it called " +
                                     std::to_string(left_[m]) +
                                     " operations; check that all ranks make the same calls)"),
           static_cast<Member>(m), now);
      return false;
    }
    if (!gone_[m].ok()) {
      fail(gone_[m], static_cast<Member>(m), now);
      return false;
    }
  }
  if (op.post.descriptor.bytes > max_block(params_.agreed)) {
    fail(Status(Code::kInvalidArgument,
                "a block of " + std::to_string(op.post.descriptor.bytes) +
                    " bytes is too long: at most " + std::to_string(max_block(params_.agreed)) +
                    " bytes with chunks of " + std::to_string(params_.agreed.chunk)),
         self_, now);
    return false;
  }
  if (const auto child = completion_.on_post(sequence, op.plan.hash)) {
    describe_to(static_cast<Member>(tree_.first_child(self_) + *child), sequence);
  }
  if (const auto it = early_describe_.find(sequence); it != early_describe_.end()) {
    const auto [member, theirs] = it->second;
    early_describe_.erase(it);
    if (!theirs.same(op.plan.descriptor)) {
      mismatch(sequence, member, theirs.to_string(), now);
      return false;
    }
  }
  return true;
}

void GroupCore::start_streams(Operation& op, Nanos now) {
  const Plan& plan = op.plan;
  const Sequence sequence = op.post.sequence;
  op.own_slot = op.slot_of(self_);
  op.receivers.reserve(plan.roots);
  for (uint32_t slot = 0; slot < plan.roots; slot++) {
    op.receivers.emplace_back(plan.chunks, ReceiverParams{plan.tolerance, params_.alpha});
    if (op.own_slot == slot) op.receivers.back().set_all();
  }
  op.receiving = plan.roots - (op.own_slot ? 1 : 0);
  if (op.post.on_completed) op.final_to.assign(plan.roots, 0);
  if (by_ring(sequence)) {
    start_ring(op, now);
    return;
  }
  FetchParams fetch;
  fetch.self = self_;
  fetch.members = size_;
  fetch.ask_root_only = plan.small;
  fetch.max_chunks = static_cast<Chunk>(std::max<size_t>(1, (256u << 10) / plan.chunk));
  fetch.coming_wait = 2 * params_.alpha;
  op.fetch.emplace(fetch);
  if (op.own_slot) {
    SenderParams sender;
    sender.chunks = plan.chunks;
    // A large operation whose eager part would be too much ahead waits for credit.
    sender.eager = plan.small ? plan.chunks : eager_.open(sequence) ? plan.eager : 0;
    sender.window = plan.window;
    sender.widest = plan.widest;
    sender.on_the_way = on_the_way_;
    sender.batch = plan.batch;
    sender.quantum = plan.quantum;
    op.sender.emplace(sender);
    op.repairs.emplace(size_ > 2 ? params_.alpha / 4 : 0);
    if (plan.small) {
      unkept_.push_back(sequence);
      if (unkept_.size() > 1 || !keep_small(op)) {
        if (op.readable() == plan.block) counters_.add(Counter::retransmit_waits);
      } else {
        unkept_.pop_front();
        unsent_.push_back(sequence);
      }
    }
  }
  if (!plan.small) start_credit(op);
  if (plan.small) learn_sent(op, now);
  replay_staged(op, now);
}

void GroupCore::start_credit(Operation& op) {
  const Plan& plan = op.plan;
  if (plan.chains < plan.roots) {
    op.chains.emplace(plan.roots, plan.chains);
  } else if (plan.roots > 2) {
    op.skew.emplace(std::max<Chunk>(1, plan.window / 2), params_.alpha);
  }
  op.credit.emplace(plan.roots, tree_.children(self_));
  op.reported.assign(plan.roots, 0);
  op.credit->post_own();
  report_credit(op, true);
  replay_early_credit(op);
}

void GroupCore::replay_early_credit(Operation& op) {
  const auto it = early_credit_.find(op.post.sequence);
  if (it == early_credit_.end()) return;
  for (const EarlyCredit& early : it->second) {
    const auto child = static_cast<Member>(tree_.first_child(self_) + early.child);
    if (early.hash != op.plan.hash) {
      describe_to(child, op.post.sequence);
      continue;
    }
    op.credit->post_child(early.child);
    for (const wire::CreditEntry& e : early.entries) {
      if (const auto slot = op.slot_of(e.root)) {
        op.credit->set_child(early.child, *slot, {e.high_water, e.limit, e.lost});
      }
    }
  }
  early_credit_.erase(it);
}

void GroupCore::replay_staged(Operation& op, Nanos now) {
  for (auto& [key, entry] : staging_.take(op.post.sequence)) {
    const auto slot = op.slot_of(key.root);
    if (entry.descriptor != op.plan.hash) {
      counters_.add(Counter::mismatched);
      describe_to(key.root, op.post.sequence);
    } else if (slot && slot != op.own_slot && key.chunk < op.plan.chunks &&
               entry.payload.size() == op.plan.length(key.chunk)) {
      place(op, *slot, key.chunk, entry.payload, entry.live, now);
    } else {
      counters_.add(Counter::malformed);
    }
  }
}

void GroupCore::check_local(Operation& op, Nanos now) {
  if (op.local_complete || op.receiving > 0 || (op.reduce && !reduce_complete(op))) return;
  if (reading(op)) return;  // its donors let go of their memory once all ranks are complete
  if (op.post.delegated && !op.post.delegated->load(std::memory_order_acquire)) return;
  if (op.sender && op.plan.small && !op.sending_started) return;  // the block is still the caller's
  if (!op.ring.empty()) {
    const auto successor = static_cast<Member>((self_ + 1u) % size_);
    for (uint32_t slot = 0; slot < op.ring.size(); slot++) {
      if (op.member_of(slot) != successor && op.ring[slot].forwarded < op.plan.block) return;
    }
  }
  op.local_complete = true;
  if (op.reduce) op.reduce->conclude();
  if (op.fetch) judge_hearing(op, now);
  if (!op.needs_release) finish(op, {}, now);
  advance_complete(now);
}

void GroupCore::arrived(Sequence sequence, Nanos now) {
  if (failed()) return;
  if (Operation* op = find(sequence)) {
    ops_.touch(*op);
    check_local(*op, now);
  }
}

void GroupCore::advance_complete(Nanos now) {
  Sequence end = completion_.own_complete();
  // Where the allowance for what is sent ahead runs low, roots wait for the release.
  bool urgent = eager_.filling();
  for (const OperationQueue::Slot* at = ops_.slot(end);
       at != nullptr && (!at->op || at->op->local_complete); at = ops_.slot(end)) {
    urgent = urgent || (at->op && at->op->needs_release);
    end++;
  }
  completion_.complete_own(end, urgent, now);
  if (tree_.is_top(self_)) on_released(completion_.subtree_complete(), now);
}

void GroupCore::finish(Operation& op, const Status& status, Nanos now) {
  if (op.finished) return;
  op.finished = true;
  streaming_fence();  // of what was placed: the memory is the caller's again
  unfinished_--;
  if (op.plan.large && size_ > 1) large_in_flight_--;
  counters_.add(status.ok() ? Counter::ops_completed : Counter::ops_failed);
  record(op, status, now);
  // Its machines hold pointers into the caller's memory.
  if (op.reduce) op.reduce->drop_memory();
  // A read of what is not registered any more would break the connection for every group: after a
  // failure somebody may not have heard of it yet.
  for (auto& hold : std::exchange(op.grants, {})) {
    if (!status.ok()) port_.linger(std::move(hold));
  }
  const Post post = std::exchange(op.post, Post{});
  op.post.sequence = post.sequence;
  op.post.descriptor = post.descriptor;
  op.post.posted = post.posted;
  if (post.done) post.done(status);
}

void GroupCore::record(const Operation& op, const Status& status, Nanos now) {
  if (!params_.trace) return;
  params_.trace->record(trace_event(op, op.plan.descriptor, params_, now, status.ok()));
}

void GroupCore::release(Sequence end, Nanos now) {
  while (ops_.base() < end && !ops_.empty()) {
    const OperationQueue::Slot& oldest = *ops_.slot(ops_.base());
    if (!oldest.kept.empty()) kept_bytes_ -= oldest.bytes + OperationQueue::kSettledCost;
    // Out of the queue before user code runs: it may post, which may release again.
    std::unique_ptr<Operation> owned = ops_.pop();
    if (!owned) continue;
    Operation& op = *owned;
    retired_.push_back(std::move(owned));
    if (!op.kept.empty()) kept_bytes_ -= op.kept.size() + OperationQueue::kSettledCost;
    if (op.reduce) {
      for (uint32_t m = 0; m < size_; m++) {
        unasked_.give_back(static_cast<Member>(m), op.reduce->unasked[m]);
      }
    }
    if (!op.finished) finish(op, {}, now);
  }
  eager_.on_released(ops_.base());
  announcer_.on_released(ops_.base());
  parked_.on_released(ops_.base());
  keep_waiting(now);
}

bool GroupCore::progress(Nanos now, bool drained) {
  retired_.clear();
  if (failed()) {
    ops_.clear();
    return false;
  }
  liveness_.set_active(active(), now);
  liveness_.on_poll(now);
  if (probe_) drive_probe(now);
  if (check_ || !ops_.empty()) drive_path(now);
  if (failed()) return false;
  admit_deferred(now);
  keep_waiting(now);
  bool more = send_small(now);
  if (large_in_flight_ > 0) measure_ingress(now);
  // What one operation has made possible for another is done at once: a turn of the lane costs
  // system calls.
  for (int round = 0; round == 0 || (ops_.touched() && round < kRounds); round++) {
    ops_.due(now, due_);
    for (const Sequence s : due_) {
      if (failed()) return false;
      if (Operation* op = find(s)) more = visit(*op, now, drained) || more;
    }
    if (failed()) return false;
  }
  serve_parked();
  announce_sent(now);
  pass_on_sent();
  if (drained) fetch_early(now);
  report_complete(now);
  if (now >= suspicion_until_) fail(suspicion_, kNoMember, now);
  if (active()) drive_liveness(now, drained);
  check_deadlines(now);
  // What became possible in this turn is done in the next.
  return (more || ops_.touched()) && !failed();
}

bool GroupCore::visit(Operation& op, Nanos now, bool drained) {
  visits_++;
  const Sequence sequence = op.post.sequence;
  // User code that runs in here may post, which may release the operation.
  const auto gone = [&] { return failed() || find(sequence) != &op; };
  bool more = false;
  if (op.reduce && !op.local_complete) {
    more = pump_reduce(op, now);
    if (gone()) return more;
  }
  if (!op.ring.empty()) {
    more = pump_ring(op, now) || more;
  } else {
    if (!op.local_complete && op.receiving > 0) {
      detect_losses(op, now, drained);
      drive_fetch(op, now);
    }
    if (op.credit && !op.finished) {
      report_credit(op, false);
      flow_credit(op, now);
    }
    if (op.sender) {
      // What is small is sent in order over the operations (send_small); here it is repeated.
      if (!op.plan.small || op.sender->resending()) more = pump(op, now) || more;
      if (!op.plan.small) announce(op, now);
      serve_repairs(op, now);
    }
  }
  if (gone()) return more;
  if (!op.finished && now >= op.deadline) inquire(op, now);
  if (!gone()) reschedule(op);
  return more;
}

// After a visit: what brings the next one.
void GroupCore::reschedule(Operation& op) {
  if (settles(op)) {
    ops_.settle(op.post.sequence);
    return;
  }
  const bool streams = op.plan.roots > 0 && !op.plan.small && !op.plan.trivial();
  const bool sending = op.sender && (!op.sender->all_sent() || op.sender->resending());
  ops_.set_busy(
      op, op.local_complete ? sending && !op.plan.small : op.reduce || streams || !op.ring.empty());
  ops_.set_timer(op, op_deadline(op));
}

bool GroupCore::settles(const Operation& op) const {
  if (!op.finished || !op.local_complete) return false;
  // What contributions have been charged to is given back with the release.
  if (op.reduce && op.plan.way != ReduceWay::kOneStep) return false;
  return !op.sender || !op.plan.small ||
         (op.sender->all_sent() && !op.sender->resending() && !op.repairs->used());
}

// When the operation must be visited although nothing happens to it.
Nanos GroupCore::op_deadline(const Operation& op) const {
  Nanos next = op.finished || late_asked_ ? kNever : op.deadline;
  if (op.sender && !op.plan.small) {
    next = std::min({next, op.sender->deadline(), op.turn_retry});
  }
  if (op.repairs) next = std::min(next, op.repairs->deadline());
  // As in visit(): a deadline that nothing acts on would make the lane spin.
  if (op.local_complete) return next;
  if (op.reduce) next = std::min(next, op.reduce->refused_until);
  if (op.receiving == 0 || !op.fetch) return next;
  next = std::min(next, op.fetch->deadline());
  for (const BlockReceiver& r : op.receivers) next = std::min(next, r.deadline());
  return next;
}

Nanos GroupCore::deadline(Nanos now) const {
  if (failed()) return ops_.empty() ? kNever : now;
  if (ops_.touched() || !sent_news_.empty()) return now;
  Nanos next = std::min({ops_.deadline(), completion_.deadline(), late_until_, departed_until_,
                         lost_until_, suspicion_until_, announcer_.deadline(), sent_.deadline()});
  if (active()) next = std::min(next, liveness_.deadline());
  if (check_) next = std::min(next, check_->deadline());
  if (probe_) next = std::min(next, probe_->deadline());
  return next;
}

bool GroupCore::quiet() const { return failed() || (ops_.empty() && !probe_ && deferred_.empty()); }

bool GroupCore::confirmed_so_far() const {
  if (quiet() || ops_.empty()) return true;
  const Operation* const oldest = ops_.find(ops_.base());
  return oldest != nullptr && !oldest->finished;
}

}  // namespace mcast
