// The life of an operation. post() makes the plan and the protocol machines and replays what
// arrived early; datagrams and frames then move it until it is complete locally (everything
// received, nothing of the caller's needed for sending). Small operations deliver their result
// right there, since their root keeps a copy for repair; large ones stay whole until the completion
// tree has released them, so that every rank can serve as a donor. Released operations leave the
// front of the queue in order.
#include "collective/group_core.h"

#include <algorithm>
#include <cstring>

#include "base/streaming_copy.h"
#include "collective/report.h"

namespace mcast {
namespace {

constexpr Nanos kReportDelay = 500 * kMicro;

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
      staging_(params_.staging),
      completion_(tree_.children(self_), tree_.is_top(self_), kReportDelay),
      liveness_(watched_members(tree_, self_, size_), params_.liveness_limit),
      early_reduce_(size_),
      unasked_(size_),
      ingress_(params_.policy),
      left_(size_, UINT32_MAX),
      gone_(size_),
      deafness_(size_),
      repairs_(size_) {
  if (size_ == 1) {
    path_ = Path::kLocal;
    path_reason_ = "one rank";
  }
}

Operation* GroupCore::find(Sequence sequence) {
  if (sequence < base_ || sequence - base_ >= ops_.size()) return nullptr;
  return ops_[sequence - base_].get();
}

void GroupCore::post(Post post, Nanos now) {
  if (frozen_ && !failed()) {
    deferred_.push_back(std::move(post));
    return;
  }
  counters_.add(Counter::ops_posted);
  const Sequence sequence = post.sequence;
  auto owned = std::make_unique<Operation>();
  Operation& op = *owned;
  op.post = std::move(post);
  op.self = self_;
  op.plan = make_plan(op.post.descriptor, params_.agreed,
                      op.post.reduce ? element_size(op.post.reduce->element) : 1);
  if (op.post.elsewhere) {
    op.plan.roots = op.plan.chunks = 0;
    op.plan.block = 0;
    op.plan.small = op.plan.large = false;
  }
  op.deadline =
      op.post.timeout >= kNever - op.post.posted ? kNever : op.post.posted + op.post.timeout;
  ops_.push_back(std::move(owned));
  next_ = sequence + 1;
  unfinished_++;
  if (failed()) {
    finish(op, failure_.with_context(op_text(op.post, now)), now);
    return;
  }
  for (uint32_t m = 0; m < size_; m++) {
    if (left_[m] <= sequence) {
      fail(Status(Code::kClosed, "rank " + std::to_string(m) + " has left the group (it called " +
                                     std::to_string(left_[m]) +
                                     " operations; check that all ranks make the same calls)"),
           static_cast<Member>(m), now);
      return;
    }
    if (!gone_[m].ok()) {
      fail(gone_[m], static_cast<Member>(m), now);
      return;
    }
  }
  if (op.post.descriptor.bytes > max_block(params_.agreed)) {
    fail(Status(Code::kInvalidArgument,
                "a block of " + std::to_string(op.post.descriptor.bytes) +
                    " bytes is too long: at most " + std::to_string(max_block(params_.agreed)) +
                    " bytes with chunks of " + std::to_string(params_.agreed.chunk)),
         self_, now);
    return;
  }
  if (const auto child = completion_.on_post(sequence, op.plan.hash)) {
    describe_to(static_cast<Member>(tree_.first_child(self_) + *child), sequence);
  }
  if (const auto it = early_describe_.find(sequence); it != early_describe_.end()) {
    const auto [member, theirs] = it->second;
    early_describe_.erase(it);
    if (!theirs.same(op.plan.descriptor)) {
      mismatch(sequence, member, theirs.to_string(), now);
      return;
    }
  }
  const bool barrier = op.plan.descriptor.kind == wire::Kind::kBarrier;
  op.needs_release = size_ > 1 && (barrier || op.post.elsewhere ||
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
  check_local(op, now);
}

void GroupCore::start_streams(Operation& op, Nanos now) {
  const Plan& plan = op.plan;
  op.own_slot = op.slot_of(self_);
  op.receivers.reserve(plan.roots);
  for (uint32_t slot = 0; slot < plan.roots; slot++) {
    op.receivers.emplace_back(plan.chunks, ReceiverParams{plan.tolerance, params_.alpha});
    if (op.own_slot == slot) op.receivers.back().set_all();
  }
  op.receiving = plan.roots - (op.own_slot ? 1 : 0);
  if (op.post.on_mark) op.final_to.assign(plan.roots, 0);
  if (by_ring(op.post.sequence)) {
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
    sender.eager = plan.small ? plan.chunks : plan.eager;
    sender.window = plan.window;
    sender.batch = plan.batch;
    sender.quantum = plan.quantum;
    op.sender.emplace(sender);
    op.repairs.emplace(size_ > 2 ? params_.alpha / 4 : 0);
    // In order: a later small operation that overtook would hold memory which is only given back
    // after the waiting one.
    if (plan.small && (retransmit_waiting_ > 0 || !keep_small(op))) {
      if (op.readable() == plan.block) counters_.add(Counter::retransmit_waits);
      retransmit_waiting_++;
    }
  }
  if (!plan.small) {
    if (plan.chains < plan.roots) {
      op.chains.emplace(plan.roots, plan.chains);
    } else if (plan.roots > 2) {
      op.lead.emplace(std::max<Chunk>(1, plan.window / 2), params_.alpha);
    }
    op.credit.emplace(plan.roots, tree_.children(self_));
    op.reported.assign(plan.roots, 0);
    op.credit->post_own();
    report_credit(op, true);
    if (const auto it = early_credit_.find(op.post.sequence); it != early_credit_.end()) {
      for (const EarlyCredit& early : it->second) {
        const auto child = static_cast<Member>(tree_.first_child(self_) + early.child);
        if (early.hash != plan.hash) {
          describe_to(child, op.post.sequence);
          continue;
        }
        op.credit->post_child(early.child);
        for (const wire::CreditEntry& e : early.entries) {
          if (const auto slot = op.slot_of(e.root)) {
            op.credit->set_child(early.child, *slot, {e.mark, e.limit, e.lost});
          }
        }
      }
      early_credit_.erase(it);
    }
  }
  replay_staged(op, now);
}

void GroupCore::replay_staged(Operation& op, Nanos now) {
  for (auto& [key, entry] : staging_.take(op.post.sequence)) {
    const auto slot = op.slot_of(key.root);
    if (entry.descriptor != op.plan.hash) {
      counters_.add(Counter::mismatched);
      describe_to(key.root, op.post.sequence);
    } else if (slot && slot != op.own_slot && key.chunk < op.plan.chunks &&
               entry.payload.size() == op.plan.length(key.chunk)) {
      place(op, *slot, key.chunk, entry.payload, true, now);
    } else {
      counters_.add(Counter::malformed);
    }
  }
}

bool GroupCore::keep_small(Operation& op) {
  if (op.readable() < op.plan.block) return false;  // staged, and not here yet
  // One operation always fits, however small the memory is set.
  if (kept_bytes_ > 0 && kept_bytes_ + op.plan.block > params_.retransmit) return false;
  const ConstBytes block = op.post.input.bytes();
  op.kept.assign(block.begin(), block.end());
  kept_bytes_ += op.kept.size();
  op.sending_started = true;
  return true;
}

void GroupCore::check_local(Operation& op, Nanos now) {
  if (op.local_complete || op.receiving > 0 || (op.reduce && !reduce_complete(op))) return;
  if (op.post.elsewhere && !op.post.elsewhere->load(std::memory_order_acquire)) return;
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
  if (Operation* op = find(sequence)) check_local(*op, now);
}

void GroupCore::advance_complete(Nanos now) {
  Sequence end = completion_.own_complete();
  bool urgent = false;
  for (Operation* op = find(end); op != nullptr && op->local_complete; op = find(end)) {
    urgent = urgent || op->needs_release;
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
  while (base_ < end && !ops_.empty()) {
    // Out of the queue before user code runs: it may post, which may release again.
    retired_.push_back(std::move(ops_.front()));
    ops_.pop_front();
    base_++;
    Operation& op = *retired_.back();
    kept_bytes_ -= op.kept.size();
    if (op.reduce) {
      for (uint32_t m = 0; m < size_; m++) {
        unasked_.give_back(static_cast<Member>(m), op.reduce->unasked[m]);
      }
    }
    if (!op.finished) finish(op, {}, now);
  }
  keep_waiting(now);
}

void GroupCore::keep_waiting(Nanos now) {
  for (Sequence s = base_; retransmit_waiting_ > 0 && s != next_; s++) {
    Operation* op = find(s);
    if (op == nullptr || !op->sender || !op->plan.small || op->sending_started) continue;
    if (!keep_small(*op)) break;
    retransmit_waiting_--;
    check_local(*op, now);
  }
}

bool GroupCore::progress(Nanos now, bool drained) {
  retired_.clear();
  if (failed()) {
    ops_.clear();
    return false;
  }
  liveness_.set_active(base_ != next_ || probe_ || frozen_, now);
  liveness_.on_poll(now);
  if (probe_) drive_probe(now);
  keep_waiting(now);
  bool more = false;
  if (large_in_flight_ > 0) measure_ingress(now);
  // By sequence: the queue moves when an operation is released inside the loop.
  for (Sequence s = base_; s != next_ && !failed(); s++) {
    Operation* const found = find(s);
    if (found == nullptr) continue;
    Operation& op = *found;
    if (op.reduce && !op.local_complete) {
      more = pump_reduce(op, now) || more;
      if (failed() || find(s) != found) continue;
    }
    if (!op.ring.empty()) {
      more = pump_ring(op, now) || more;
      continue;
    }
    if (!op.local_complete && op.receiving > 0) {
      detect_losses(op, now, drained);
      drive_fetch(op, now);
    }
    if (op.credit && !op.finished) {
      report_credit(op, false);
      flow_credit(op, now);
    }
    if (op.sender) {
      more = pump(op, now) || more;
      announce(op, now);
      serve_repairs(op, now);
    }
  }
  if (failed()) return false;
  report_complete(now);
  if (now >= suspicion_until_) fail(suspicion_, kNoMember, now);
  if (base_ != next_ || probe_ || frozen_) drive_liveness(now, drained);
  check_deadlines(now);
  return more && !failed();
}

Nanos GroupCore::deadline(Nanos now) const {
  if (failed()) return ops_.empty() ? kNever : now;
  Nanos next = std::min(
      {completion_.deadline(), late_until_, departed_until_, lost_until_, suspicion_until_});
  if (base_ != next_ || probe_ || frozen_) next = std::min(next, liveness_.deadline());
  if (probe_) next = std::min(next, probe_->deadline());
  for (const auto& op : ops_) {
    if (!op->finished) next = std::min(next, late_asked_ ? kNever : op->deadline);
    if (op->sender) next = std::min({next, op->sender->deadline(), op->turn_retry});
    if (op->repairs) next = std::min(next, op->repairs->deadline());
    // As in progress(): a deadline that nothing acts on would make the lane spin.
    if (op->local_complete) continue;
    if (op->reduce) next = std::min(next, op->reduce->refused_until);
    if (op->receiving == 0) continue;
    if (op->fetch) {
      next = std::min(next, op->fetch->deadline());
      for (const StreamReceiver& r : op->receivers) next = std::min(next, r.deadline());
    }
  }
  return next;
}

bool GroupCore::quiet() const {
  return failed() || (base_ == next_ && !probe_ && deferred_.empty());
}

bool GroupCore::confirmed_so_far() const {
  return quiet() || ops_.empty() || !ops_.front()->finished;
}

}  // namespace mcast
