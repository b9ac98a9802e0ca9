// The life of an operation among ranks that share a kernel. Three pointers walk over the queue of
// operations: what is published (as far as the slots are free), what is consumed (in order, when
// those it needs have published), what is complete. An operation is complete when its last round is
// consumed here, since the slots keep the data for the others; one whose input the others read
// directly when they take the last round only when everybody has consumed that.
//
// Sleeping: arm() writes into the board what this rank waits for and looks once more; a peer that
// publishes or consumes then looks at the needs. All of it in one total order (seq_cst), so one of
// the two always sees the other. A need that is met is taken away by the peer that rings.
//
// Failure: the first to claim the notice writes the reason; everybody who looks fails with it. A
// rank claims before it gives memory back to its caller, and a reader looks after it has read, so
// bytes that the caller has changed since are never taken for good ones.
#include "collective/host_core.h"

#include <algorithm>
#include <cstring>

#include "base/fence.h"
#include "collective/report.h"

namespace mcast {
namespace {

constexpr Nanos kNoticeWriting = kSecond;  // patience with a notice that is being written

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// One all_reduce step reads members x bytes into every rank's cache: at most this.
constexpr size_t kOneStep = 256u << 10;
// Rounds at once; then limits are looked at, and other groups have their turn.
constexpr int kPasses = 64;
constexpr size_t kAlign = 64;  // of parts of a tensor: whole elements, whole cache lines

}  // namespace

HostPlan make_host_plan(const wire::Descriptor& d, uint32_t members, bool direct) {
  using wire::Kind;
  static_assert(kHostSlot / kHostMembers >= kAlign);
  HostPlan plan;
  const size_t bytes = d.bytes;
  const size_t part = kHostSlot / members / kAlign * kAlign;
  const auto in_slots = [&](size_t slice, size_t total) {
    plan.slice = slice;
    plan.rounds = static_cast<uint32_t>(std::max<size_t>(1, (total + slice - 1) / slice));
    plan.large = plan.rounds > 1;
  };
  const auto by_address = [&] { plan.direct = plan.lends = plan.large = true; };
  switch (d.kind) {
    case Kind::kBarrier:
      break;
    case Kind::kBroadcast:
    case Kind::kAllgather:
      in_slots(kHostSlot, bytes);
      plan.whole = d.kind == Kind::kAllgather ? bytes * members : bytes;
      break;
    case Kind::kReduce:
      if (direct && bytes > kHostSlot) {
        by_address();
      } else {
        in_slots(kHostSlot, bytes);
      }
      break;
    case Kind::kReduceScatter:
      if (direct && bytes > part) {
        by_address();
      } else {
        in_slots(part, bytes);
      }
      break;
    case Kind::kAllreduce:
      if (bytes <= kHostSlot && bytes * members <= kOneStep) {
        plan.one_step = true;
        in_slots(kHostSlot, bytes);
        break;
      }
      plan.direct = direct;
      plan.whole = bytes;
      if (direct) {
        const size_t each = (bytes + members - 1) / members;
        in_slots(std::min(kHostSlot, round_up(each, kAlign)), each);
        plan.rounds++;
      } else {
        in_slots(part, (bytes + members - 1) / members);
        plan.rounds *= 2;
      }
      plan.large = true;
      break;
  }
  return plan;
}

HostPlan::Step HostPlan::step(uint32_t index) const { return {index % 2 == 1, index / 2}; }

HostCore::HostCore(HostParams params, HostBoard board, HostPort& port, Counters& counters)
    : params_(std::move(params)), board_(board), port_(port), counters_(counters) {}

void HostCore::post(Post post) {
  counters_.add(Counter::ops_posted);
  if (!failure_.ok()) {
    counters_.add(Counter::ops_failed);
    if (post.done) post.done(failure_.with_context(op_text(post)));
    return;
  }
  auto op = std::make_unique<Op>();
  op->plan = make_host_plan(post.descriptor, params_.size, params_.direct);
  op->first = next_round_;
  next_round_ += op->plan.rounds;
  begin_round(*op);
  op->deadline = post.timeout >= kNever - post.posted ? kNever : post.posted + post.timeout;
  op->post = std::move(post);
  mine().called.store(op->post.sequence + 1, std::memory_order_release);
  ops_.push_back(std::move(op));
}

bool HostCore::progress(bool large) {
  retired_.clear();
  bool left_over = false, ended = false;
  for (int pass = 0; failure_.ok(); pass++) {
    if (large && pass == kPasses) return true;
    if (noticed()) {
      obey_notice();
      return false;
    }
    bool moved = false;
    left_over = false;
    // Whoever waits for an operation that has ended is not kept for the transfer of the next. One
    // round at a time, which is consumed while it is in the cache.
    if (publish_next(large && !ended, left_over)) moved = true;
    if (consume_next(large && !ended, left_over)) moved = true;
    while (complete_next()) moved = ended = true;
    if (!moved) return left_over;
  }
  return false;
}

uint64_t HostCore::least_consumed() const {
  uint64_t least = UINT64_MAX;
  for (uint32_t m = 0; m < params_.size; m++) {
    least = std::min(least, words(static_cast<Member>(m)).consumed.load(std::memory_order_seq_cst));
  }
  return least;
}

bool HostCore::published(Member m, uint64_t round) const {
  return words(m).published.load(std::memory_order_seq_cst) > round;
}

bool HostCore::all_published(uint64_t round) const {
  for (uint32_t m = 0; m < params_.size; m++) {
    if (!published(static_cast<Member>(m), round)) return false;
  }
  return true;
}

// Whether what the next round publishes is there (the slot aside).
bool HostCore::ready_to_publish(const Op& op) const {
  const auto readable = [](const Slice& s, size_t bytes) {
    return !s.region || s.region->readable() >= s.offset + std::min(bytes, s.length);
  };
  using wire::Kind;
  switch (op.post.descriptor.kind) {
    case Kind::kBarrier:  // says that everything before it is over here
      return &op == ops_.front().get();
    case Kind::kAllreduce:
      if (op.plan.direct) {
        if (op.published > 0 && op.consumed == 0) return false;  // the addresses are not here
      } else if (!op.plan.one_step) {
        // A round that gathers publishes the result of the one that folded.
        const HostPlan::Step step = op.plan.step(op.published);
        if (step.gathers && step.segment >= op.folded) return false;
      }
      break;
    default:
      break;
  }
  if (op.post.reduce) {
    return std::all_of(op.post.reduce->inputs.begin(), op.post.reduce->inputs.end(),
                       [&](const Slice& s) { return readable(s, s.length); });
  }
  return readable(op.post.input, (op.published + size_t{1}) * op.plan.slice);
}

bool HostCore::can_publish(uint64_t least) const {
  if (publishing_ >= ops_.size()) return false;
  const Op& op = *ops_[publishing_];
  return op.first + op.published < least + kHostDepth && ready_to_publish(op);
}

bool HostCore::can_complete(uint64_t least) const {
  if (consuming_ == 0) return false;
  const Op& op = *ops_.front();
  return !op.plan.lends || least >= op.first + op.plan.rounds;
}

bool HostCore::publish_next(bool large, bool& left_over) {
  if (!can_publish(least_consumed())) return false;
  Op& op = *ops_[publishing_];
  const uint64_t round = op.first + op.published;
  if (folds_to_publish(op) && !large) {
    left_over = true;
    return false;
  }
  // What was folded of memory that was given back meanwhile is published after the notice, which
  // those who take it see (consume_next).
  if (!fill(op, op.published)) return false;
  op.published++;
  if (op.published == op.plan.rounds) publishing_++;
  counters_.add(Counter::shm_rounds);
  mine().published.store(round + 1, std::memory_order_seq_cst);
  tell_published();
  return true;
}

void HostCore::begin_round(Op& op) const {
  op.agreed.assign(params_.size, false);
  op.taken.assign(params_.size, false);
  op.agreed[params_.self] = op.taken[params_.self] = true;
}

// Headers of this round that are there must name the same call. Of two ranks that differ, the one
// that consumes later sees the other's.
bool HostCore::compare(Op& op, uint32_t index) {
  const wire::Descriptor& ours = op.post.descriptor;
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    if (op.agreed[m] || !published(m, op.first + index)) continue;
    const HostRound& r = round_of(m, op.first + index);
    wire::Descriptor theirs{static_cast<wire::Kind>(r.kind),
                            r.element,
                            r.root,
                            r.bytes,
                            std::string(r.name, strnlen(r.name, kHostName)),
                            r.reduction};
    if (theirs.same(ours) && r.sequence == op.post.sequence &&
        r.index_low == static_cast<uint16_t>(index)) {
      op.agreed[m] = true;
      continue;
    }
    fail(differs(op.post.sequence, params_.self, ours.to_string(), m, theirs.to_string()), m);
    return false;
  }
  return true;
}

bool HostCore::consume_next(bool large, bool& left_over) {
  if (consuming_ >= ops_.size()) return false;
  Op& op = *ops_[consuming_];
  const uint32_t index = op.consumed;
  if (op.published <= index || !compare(op, index)) return false;
  if (op.plan.direct && noticed()) return false;
  const Took took = take(op, index, large);
  left_over = left_over || took == Took::kLarge;
  if (took != Took::kAll) return false;
  if (op.plan.direct) {
    // After the reads: whoever gives memory back before its time has seen or left a notice first.
    full_fence();
    if (noticed()) return false;
  }
  op.consumed++;
  begin_round(op);
  if (op.consumed == op.plan.rounds) consuming_++;
  mine().consumed.store(op.first + op.consumed, std::memory_order_seq_cst);
  tell_consumed();
  return true;
}

bool HostCore::complete_next() {
  if (!can_complete(least_consumed())) return false;
  finish(0, {});
  return true;
}

void HostCore::finish(size_t index, const Status& status) {
  retired_.push_back(std::move(ops_[index]));
  ops_.erase(ops_.begin() + static_cast<std::ptrdiff_t>(index));
  if (publishing_ > index) publishing_--;
  if (consuming_ > index) consuming_--;
  Op& op = *retired_.back();
  counters_.add(status.ok() ? Counter::ops_completed : Counter::ops_failed);
  if (params_.trace) {
    params_.trace->record(trace_event(op, op.post.descriptor, params_, port_.now(), status.ok()));
  }
  // A notice is there before the memory is written again: readers look in the other order.
  if (!status.ok()) full_fence();
  // The caller's memory goes before the caller learns that it is over.
  auto done = std::move(op.post.done);
  op.post.on_completed = nullptr;
  op.post.input = {};
  op.post.outputs.clear();
  op.post.reduce.reset();
  if (done) done(status.ok() ? status : status.with_context(op_text(op.post)));
}

// --- sleeping ---

HostNeed HostCore::need_of(const Op& op) const {
  HostNeed need;
  need.rounds = op.first + op.consumed + 1;
  need.kind = HostNeed::Kind::kAll;
  if (op.post.descriptor.kind == wire::Kind::kBroadcast) {
    need.kind = HostNeed::Kind::kFrom;
    need.member = op.post.descriptor.root;
  }
  return need;
}

bool HostCore::arm(HostWaiter waiter) {
  if (ops_.empty() || !failure_.ok()) return true;
  HostNeed data, room;
  room.rounds = UINT64_MAX;
  const Op* const op = consuming_ < ops_.size() ? ops_[consuming_].get() : nullptr;
  if (op != nullptr && op->published > op->consumed) {
    data = need_of(*op);
    data.waiter = waiter;
  }
  // Of the marks that are not reached, the nearest. One that was reached since the last progress()
  // may let something go on; if it does not, it holds up nothing.
  const uint64_t least = least_consumed();
  if (can_publish(least) || can_complete(least)) return false;
  const auto want = [&](uint64_t rounds) {
    if (least < rounds) room.rounds = std::min(room.rounds, rounds);
  };
  if (publishing_ < ops_.size()) {
    const uint64_t round = ops_[publishing_]->first + ops_[publishing_]->published;
    if (round >= kHostDepth) want(round + 1 - kHostDepth);
  }
  if (consuming_ > 0) want(ops_[0]->first + ops_[0]->plan.rounds);
  const bool wants_room = room.rounds != UINT64_MAX;
  if (wants_room) room.waiter = waiter;
  mine().need_published.store(data.pack(), std::memory_order_seq_cst);
  mine().need_consumed.store(wants_room ? room.pack() : 0, std::memory_order_seq_cst);
  bool there = board_.notice().state.load(std::memory_order_seq_cst) == 2;
  there = there || (wants_room && least_consumed() >= room.rounds);
  if (data.waiter != HostWaiter::kNone && !there) {
    const uint64_t round = data.rounds - 1;
    switch (data.kind) {
      case HostNeed::Kind::kFrom:
        there = published(data.member, round);
        break;
      default:
        there = all_published(round);
    }
  }
  if (there) disarm();
  return !there;
}

void HostCore::disarm() {
  mine().need_published.store(0, std::memory_order_relaxed);
  mine().need_consumed.store(0, std::memory_order_relaxed);
}

// Wakes whoever is asleep for a need that is met now.
template <typename Met>
void HostCore::tell(std::atomic<uint64_t> HostWords::*need_word, Met met) {
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    if (m == params_.self) continue;
    auto& word = words(m).*need_word;
    uint64_t seen = word.load(std::memory_order_seq_cst);
    const HostNeed need = HostNeed::unpack(seen);
    if (need.waiter == HostWaiter::kNone || !met(need)) continue;
    if (word.compare_exchange_strong(seen, 0)) port_.wake(m, need.waiter);
  }
}

void HostCore::tell_published() {
  const uint64_t ours = mine().published.load(std::memory_order_relaxed);
  tell(&HostWords::need_published, [&](const HostNeed& need) {
    if (ours < need.rounds) return false;
    if (need.kind == HostNeed::Kind::kFrom) return need.member == params_.self;
    return need.kind != HostNeed::Kind::kAll || all_published(need.rounds - 1);
  });
}

void HostCore::tell_consumed() {
  const uint64_t least = least_consumed();
  tell(&HostWords::need_consumed, [&](const HostNeed& need) { return least >= need.rounds; });
}

// --- failure ---

std::string HostCore::op_text(const Post& post) const {
  return describe_failed(post, params_.name, params_.self, port_.now());
}

std::string HostCore::oldest_text() const { return ops_.empty() ? "" : op_text(ops_[0]->post); }

bool HostCore::noticed() const {
  return board_.notice().state.load(std::memory_order_acquire) != 0;
}

void HostCore::obey_notice() {
  const HostNotice& notice = board_.notice();
  if (notice.state.load(std::memory_order_acquire) == 2) {
    // The news of a failure may overtake that of success: what is all there in slots is taken.
    bool left_over = false;
    while (failure_.ok() && (consume_next(true, left_over) || complete_next())) {
    }
    counters_.add(Counter::aborts_received);
    const bool known = notice.code > 0 && notice.code <= static_cast<uint32_t>(Code::kInternal);
    return fail_local(Status(known ? static_cast<Code>(notice.code) : Code::kAborted,
                             std::string(notice.text, strnlen(notice.text, kHostText))));
  }
  const Nanos now = port_.now();
  if (notice_seen_ == kNever) notice_seen_ = now;
  if (now - notice_seen_ > kNoticeWriting) {
    fail_local(Status(Code::kPeerLost, "a rank ended while it reported a failure"));
  }
}

void HostCore::fail(const Status& why, Member culprit) {
  if (!failure_.ok() || why.ok()) return;
  HostNotice& notice = board_.notice();
  uint32_t none = 0;
  if (!notice.state.compare_exchange_strong(none, 1)) {
    return;  // somebody else was first: progress() will see
  }
  notice.code = static_cast<uint32_t>(why.code());
  notice.culprit = culprit;
  notice.reporter = params_.self;
  const size_t length = std::min(why.message().size(), kHostText - 1);
  std::memcpy(notice.text, why.message().data(), length);
  notice.text[length] = 0;
  notice.state.store(2, std::memory_order_seq_cst);
  counters_.add(Counter::aborts_sent);
  port_.wake_all();
  fail_local(why);
}

void HostCore::fail_local(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  disarm();
  while (!ops_.empty()) finish(0, failure_);
}

std::vector<Member> HostCore::awaited() const {
  std::vector<Member> who;
  if (ops_.empty()) return who;
  const Op* const op = consuming_ < ops_.size() ? ops_[consuming_].get() : nullptr;
  const bool wants_data = op != nullptr && op->published > op->consumed;
  const bool from_root = wants_data && op->post.descriptor.kind == wire::Kind::kBroadcast;
  uint64_t room = consuming_ > 0 ? ops_[0]->first + ops_[0]->plan.rounds : 0;
  if (op != nullptr && !wants_data) {
    const uint64_t round = op->first + op->published;
    if (round >= kHostDepth) room = std::max(room, round + 1 - kHostDepth);
  }
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    if (m == params_.self) continue;
    const bool data = wants_data && (!from_root || m == op->post.descriptor.root) &&
                      !op->taken[m] && !published(m, op->first + op->consumed);
    if (data || words(m).consumed.load(std::memory_order_acquire) < room) who.push_back(m);
  }
  return who;
}

void HostCore::check(const std::vector<Member>& unresponsive) {
  if (ops_.empty() || !failure_.ok() || noticed()) return;
  std::vector<std::pair<Member, Sequence>> left;
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    const uint32_t at = words(m).left.load(std::memory_order_acquire);
    if (at != 0) left.emplace_back(m, at - 1);
  }
  // Whoever left had published all that it had called: looked at after the word.
  const std::vector<Member> who = left.empty() ? std::vector<Member>() : awaited();
  const Sequence wanted = ops_[std::min(consuming_, ops_.size() - 1)]->post.sequence;
  for (const auto& [m, called] : left) {
    if (called > wanted || std::find(who.begin(), who.end(), m) == who.end()) continue;
    return fail(Status(Code::kClosed, "rank " + std::to_string(m) +
                                          " left the group without calling operation " +
                                          std::to_string(wanted)),
                m);
  }
  const Nanos now = port_.now();
  for (const auto& op : ops_) {
    if (now < op->deadline) continue;
    std::string late, silent;
    Member culprit = kNoMember;
    for (uint32_t i = 0; i < params_.size; i++) {
      const auto m = static_cast<Member>(i);
      const bool called = words(m).called.load(std::memory_order_acquire) > op->post.sequence;
      const bool answers =
          std::find(unresponsive.begin(), unresponsive.end(), m) == unresponsive.end();
      if (m == params_.self || (called && answers)) continue;
      std::string& list = answers ? late : silent;
      list += (list.empty() ? "" : ", ") + std::to_string(m);
      if (culprit == kNoMember) culprit = m;
    }
    std::string text = "operation " + std::to_string(op->post.sequence) + " (" +
                       op->post.descriptor.to_string() + ") passed its time limit of " +
                       seconds_text(op->post.timeout) + ": ";
    if (!late.empty()) text += "rank(s) " + late + " have not called it";
    if (!silent.empty()) {
      text += std::string(late.empty() ? "" : "; ") + "rank(s) " + silent +
              " have not answered for " + seconds_text(kSecond);
    }
    if (late.empty() && silent.empty()) {
      text += "all ranks have called it, the transfer did not finish in time";
    }
    return fail(Status(Code::kTimeout,
                       text + "; check that all ranks make the same calls, or raise the timeout"),
                culprit);
  }
}

void HostCore::leave() {
  if (!failure_.ok()) return;
  const uint32_t called = mine().called.load(std::memory_order_relaxed);
  mine().left.store(1 + called, std::memory_order_seq_cst);
  port_.wake_all();
}

}  // namespace mcast
