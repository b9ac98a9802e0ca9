// Liveness and departure of members. A member is alive as long as frames of it arrive. The members
// that a member watches (its neighbours in the tree and on the ring) are pinged while work is in
// flight, and one that is silent for too long fails the group. A member stays, has left at
// operation N, or is lost. It leaves when all operations below N are complete everywhere, and its
// Leave frame reports that to members that do not know it yet. From then on nobody needs it or
// watches it, until a call of operation N or a later one.
#include "collective/membership.h"
#include "base/coverage.h"
#include "base/errors.h"

#include <algorithm>

namespace mcast {
namespace {

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

constexpr Nanos kServe = kSecond;  // after a loss: other members may still need repairs

}  // namespace

Membership::Membership(GroupContext& context)
    : g_(context),
      liveness_(watched_members(context.tree, context.self, context.size),
                context.params.liveness_limit),
      left_(context.size, UINT32_MAX) {}

void Membership::on_turn(bool active, Nanos now) {
  set_active(active, now);
  liveness_.on_poll(now);
}

Nanos Membership::deadline() const {
  const Nanos next = std::min(departed_until_, lost_until_);
  return liveness_.active() ? std::min(next, liveness_.deadline()) : next;
}

void Membership::greet() {
  liveness_.await_first_words();
  for (const Member m : liveness_.watched()) {
    g_.counters.add(Counter::pings_sent);
    g_.send_frame(m, Channel::kControl, wire::FrameType::kPing, g_.ops.base(), 0);
  }
}

std::optional<std::pair<Member, Status>> Membership::misses(Sequence sequence) const {
  if (g_.leaving.all_here) return std::nullopt;
  for (uint32_t m = 0; m < g_.size; m++) {
    const auto member = static_cast<Member>(m);
    if (left_[m] <= sequence) {
      return std::pair(member,
                       Status(Code::kClosed, error_text<ErrorId::rank_left>(m, left_[m]) +
                                                 " check that all ranks make the same calls)"));
    }
    if (left_[m] == UINT32_MAX && !g_.gone[m].ok()) return std::pair(member, g_.gone[m]);
  }
  return std::nullopt;
}

bool Membership::all_stay_for(Sequence sequence) {
  const auto missing = misses(sequence);
  if (missing) g_.fail(missing->second, missing->first);
  return !missing;
}

void Membership::leave() {
  if (leaving() || g_.failed()) return;
  g_.leaving.all_here = false;
  left_[g_.self] = g_.ops.next();
  g_.flood(wire::FrameType::kLeave, g_.ops.next(), g_.self, {}, kNoMember);
}

bool Membership::on_leave(const Frame& header) {
  if (header.argument >= g_.size || header.argument == g_.self) {
    g_.counters.add(Counter::malformed);
    return false;
  }
  const auto member = static_cast<Member>(header.argument);
  g_.leaving.all_here = false;
  left_[member] = std::min(left_[member], header.sequence);
  liveness_.forget(member);
  if (departed_ == member) departed_until_ = kNever;
  g_.flood(wire::FrameType::kLeave, header.sequence, header.argument, {}, header.member);
  miss_left();
  return true;
}

void Membership::on_close() { miss_left(); }

// Fails the group if operations are posted here that a member has not posted before it left.
void Membership::miss_left() {
  if (!g_.needs_others()) return;
  for (uint32_t m = 0; m < g_.size; m++) {
    if (m == g_.self || left_[m] >= g_.ops.next()) continue;
    const auto member = static_cast<Member>(m);
    return g_.fail(make_error<ErrorId::rank_left_before>(member, left_[m]), member);
  }
}

void Membership::on_ping(const Frame& header, ConstBytes body) {
  g_.send_frame(header.member, Channel::kControl, wire::FrameType::kPong, 0, 0);
  if (body.size() == 4 && g_.ops.entry(header.sequence) != nullptr) {
    g_.agrees(header.member, header.sequence, wire::load<uint32_t>(body.data()));
  }
}

void Membership::on_peer_down(Member peer, const Status& why, bool graceful, Nanos now) {
  if (g_.failed() || !g_.gone[peer].ok()) return;
  g_.leaving.all_here = false;
  const bool probing = g_.state == GroupState::kProbing;
  const bool left = left_[peer] != UINT32_MAX;
  const bool missed = !left && (g_.unfinished > 0 || probing || !g_.deferred.empty());
  if (why.code() == Code::kResourceExhausted) {
    // It is not that member's fault, and its log does not mention it.
    g_.gone[peer] = Status(why.code(), "rank " + std::to_string(g_.self) + " cannot reach rank " +
                                           std::to_string(peer) + " (" + why.message() + ")");
    if (missed) g_.fail(g_.gone[peer], g_.self);
    return;
  }
  // Before the first connection it is unknown whether the peer itself has failed.
  const bool unreached = why.code() == Code::kUnavailable;
  g_.gone[peer] = graceful    ? Status(Code::kPeerLost,
                                       "rank " + std::to_string(peer) +
                                           " closed its connections; look at its log for the first "
                                              "error")
                  : unreached ? make_error<ErrorId::rank_unreached>(peer, why.message())
                              : make_error<ErrorId::rank_lost>(peer, why.message());
  if (left) return;
  // A lost peer does no harm until the next call, unless an operation needs it. A peer that closed
  // in order knew that all its operations were complete everywhere; that news comes down the tree
  // and may arrive after the end of the connection.
  if (graceful && g_.needs_others() && !probing) {
    if (departed_until_ != kNever) return;
    MCAST_COVER(goodbye_before_the_release);
    departed_ = peer;
    departed_until_ = now + g_.params.liveness_limit;
    return;
  }
  if (missed) return g_.fail(g_.gone[peer], peer);
  if (!graceful && !g_.ops.empty() && lost_until_ == kNever) {
    MCAST_COVER(lost_after_the_end);
    lost_ = peer;
    lost_until_ = now + kServe;
  }
}

void Membership::drive(Nanos now, bool drained) {
  std::vector<Member> ping;
  if (liveness_.active()) liveness_.due(now, ping);
  for (const Member m : ping) {
    g_.counters.add(Counter::pings_sent);
    // The ping names the oldest unfinished operation. This is the only way to detect calls that
    // differ so that no data ever flows (each member takes the other for the root).
    wire::Writer body;
    const OperationQueue::Entry* const oldest = g_.ops.entry(g_.ops.base());
    if (oldest != nullptr) body.put<uint32_t>(oldest->hash);
    g_.send_frame(m, Channel::kControl, wire::FrameType::kPing, g_.ops.base(), 0, body.bytes());
  }
  if (drained && liveness_.active()) miss_silent(now);
  if (now >= departed_until_) {
    departed_until_ = kNever;
    if (g_.needs_others()) return g_.fail(g_.gone[departed_], departed_);
  }
  if (now >= lost_until_) {
    lost_until_ = kNever;
    if (!g_.ops.empty()) g_.fail(g_.gone[lost_], lost_);
  }
}

Status silence_of(Member member, Nanos silence, Nanos limit) {
  return Status(Code::kPeerLost, error_text<ErrorId::rank_silent>(member, seconds_text(silence),
                                                                  seconds_text(limit)) +
                                     "; its process is stopped or its network is cut");
}

void Membership::miss_silent(Nanos now) {
  const Member silent = liveness_.silent(now);
  if (silent == kNoMember) return;
  if (!g_.gone[silent].ok()) return g_.fail(g_.gone[silent], silent);  // it closed in order
  g_.fail(silence_of(silent, liveness_.silence(silent, now), g_.params.liveness_limit), silent);
}

}  // namespace mcast
