// Ends operations for other reasons: a failure here or elsewhere, a limit, a rank that left. The
// first rank to claim the record writes the reason; all others fail with it (failure_record.h).
#include <algorithm>

#include "base/errors.h"
#include "collective/closing.h"
#include "collective/error_text.h"
#include "shm/core.h"
#include "shm/failure_record.h"

namespace mcast {
namespace {

constexpr Nanos kClaimPatience = kSecond;  // longest wait for a failure that is being written
constexpr int kLastTurns = 64;             // polls for messages that arrived before the failure

bool contains(const std::vector<Member>& members, Member m) {
  return std::find(members.begin(), members.end(), m) != members.end();
}

void list(std::string& text, Member m) { text += (text.empty() ? "" : ", ") + std::to_string(m); }

}  // namespace

std::string HostCore::op_text(const Post& post) const {
  return describe_failed(post, params_.name, params_.self, port_.now());
}

void HostCore::fail(const Status& why, Member culprit) {
  if (!failure_.ok() || why.ok()) return;
  // Another rank was first: progress() will notice.
  if (!claim_failure(lane_.failure(), why, culprit, params_.self)) return;
  counters_.add(Counter::aborts_sent);
  port_.wake_all();
  fail_local(why);
}

void HostCore::fail_local(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  disarm();
  while (!ops_.empty()) finish_oldest(failure_);
  if (messages_) messages_->on_failure(failure_);
}

void HostCore::obey_failure() {
  const FailureRecord& record = lane_.failure();
  if (failure_readable(record)) {
    // The failure may become visible before an earlier success: rounds that are complete in slots
    // are taken first.
    bool left_over = false;
    while (failure_.ok() && (consume_next(true, left_over) || complete_next())) {
    }
    for (int turn = 0; messages_ && turn < kLastTurns; turn++) {
      if (!messages_->progress(false, left_over) || messages_->take_failure()) break;
    }
    counters_.add(Counter::aborts_received);
    return fail_local(read_failure(record));
  }
  const Nanos now = port_.now();
  if (claim_seen_ == kNever) claim_seen_ = now;
  if (now - claim_seen_ > kClaimPatience) {
    fail_local(Status(Code::kPeerLost, "a rank ended while it reported a failure"));
  }
}

// Handles failures found by messages.
void HostCore::heed_messages() {
  if (messages_->unreadable()) fail_unreadable();
  if (const auto found = messages_->take_failure()) fail(found->first, found->second);
}

void HostCore::fail_unreadable() {
  // A rank that failed, reported why and ended is not the culprit.
  if (failure_claimed(lane_.failure())) return;
  const auto& [member, why] = *tools_.folder.unreadable();
  fail(make_error<ErrorId::rank_lost>(member, why.message()), member);
}

std::vector<Member> HostCore::awaited() const {
  std::vector<Member> who = awaited_by_operations();
  if (!messages_) return who;
  for (const Member m : messages_->awaited()) {
    if (!contains(who, m)) who.push_back(m);
  }
  return who;
}

std::vector<Member> HostCore::awaited_by_operations() const {
  std::vector<Member> who;
  if (ops_.empty()) return who;
  const HostOperation* const op = consuming();
  const bool wants_data = op != nullptr && op->published > op->consumed;
  const bool from_root = wants_data && op->takes_from_root();
  uint64_t room = consuming_ > 0 ? ops_[0]->first + ops_[0]->plan.rounds : 0;
  if (op != nullptr && !wants_data) {
    if (published_ >= kHostDepth) room = std::max(room, published_ + 1 - kHostDepth);
  }
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    if (m == params_.self) continue;
    const bool data = wants_data && (!from_root || m == op->post.descriptor.root) &&
                      !op->taken[m] && !lane_.published(m, op->first + op->consumed);
    if (data || lane_.state(m).consumed.load(std::memory_order_acquire) < room) who.push_back(m);
  }
  return who;
}

void HostCore::check(const std::vector<Member>& unresponsive) {
  if (idle() || !failure_.ok() || failure_claimed(lane_.failure())) return;
  if (!ops_.empty()) limit_operations(unresponsive);
  if (!messages_ || !failure_.ok()) return;
  messages_->check();
  heed_messages();
}

void HostCore::limit_operations(const std::vector<Member>& unresponsive) {
  if (fail_for_leavers()) return;
  const Nanos now = port_.now();
  for (const auto& op : ops_) {
    if (now < op->deadline) continue;
    Member culprit = kNoMember;
    const std::string text = timeout_text(*op, unresponsive, culprit);
    return fail(Status(Code::kTimeout, text), culprit);
  }
}

// Returns true if a rank left without calling an awaited operation.
bool HostCore::fail_for_leavers() {
  std::vector<std::pair<Member, Sequence>> leavers;
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    const uint32_t left = lane_.state(m).left.load(std::memory_order_acquire);
    if (left != 0) leavers.emplace_back(m, left - 1);
  }
  if (leavers.empty()) return false;
  // A rank that left had published all operations that it had called: read after `left`.
  const std::vector<Member> who = awaited_by_operations();
  const Sequence wanted = ops_[std::min(consuming_, ops_.size() - 1)]->post.sequence;
  for (const auto& [m, called] : leavers) {
    if (called > wanted || !contains(who, m)) continue;
    fail(make_error<ErrorId::rank_left_before>(m, wanted), m);
    return true;
  }
  return false;
}

std::string HostCore::timeout_text(const HostOperation& op, const std::vector<Member>& unresponsive,
                                   Member& culprit) const {
  const Post& post = op.post;
  std::string late, silent;
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    const bool called = lane_.state(m).called.load(std::memory_order_acquire) > post.sequence;
    const bool answers = !contains(unresponsive, m);
    if (m == params_.self || (called && answers)) continue;
    list(answers ? late : silent, m);
    if (culprit == kNoMember) culprit = m;
  }
  std::string text = "operation " + std::to_string(post.sequence) + " (" +
                     post.descriptor.to_string() + ") passed its time limit of " +
                     seconds_text(post.timeout) + ": ";
  if (!late.empty()) text += error_text<ErrorId::ranks_late>(late);
  if (!silent.empty()) {
    text += std::string(late.empty() ? "" : "; ") + "rank(s) " + silent +
            " have not answered for " + seconds_text(kSecond);
  }
  if (late.empty() && silent.empty()) {
    text += "all ranks have called it, but the transfer did not finish in time";
  }
  return text + "; check that all ranks make the same calls, or raise the timeout";
}

std::string HostCore::oldest_text() const {
  return ops_.empty() ? messages_->unfinished_text() : op_text(ops_[0]->post);
}

size_t HostCore::in_flight() const {
  return ops_.size() + (messages_ ? messages_->unfinished() : 0);
}

bool HostCore::may_leave(bool force, bool late, Status& outcome) {
  if (idle()) return true;
  if (!force && !late) return false;
  if (in_flight() == 0) return true;  // only notifications that the receivers do not read
  if (outcome.ok()) {
    const LeftInFlight left = left_in_flight(params_.self, in_flight(), force);
    outcome = left.here.with_context(oldest_text());
    fail(left.for_others, params_.self);
  }
  // Another rank is just writing its failure: this rank's operations end with that, and must not be
  // left behind.
  return idle();
}

void HostCore::leave() {
  if (!failure_.ok()) return;
  const uint32_t called = lane_.mine().called.load(std::memory_order_relaxed);
  lane_.mine().left.store(1 + called, std::memory_order_seq_cst);
  port_.wake_all();
}

}  // namespace mcast
