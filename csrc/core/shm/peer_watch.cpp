// A stopped process does not reply: its silence adds up over ticks. Each tick counts for at most
// two, so that a process that was stopped itself does not take the others for silent. One question
// is open at a time; the host thread that must reply is rung repeatedly.
#include "shm/peer_watch.h"

#include <algorithm>

#include "shm/futex.h"

namespace mcast {
namespace {

// Time without a reply before a time-out's text says "has not answered".
constexpr Nanos kUnresponsive = kSecond;

}  // namespace

PeerWatch::PeerWatch(uint32_t members, Nanos liveness_limit, Counters& counters)
    : liveness_limit_(liveness_limit),
      interval_(std::clamp<Nanos>(liveness_limit / 8, kHostTick, 2 * kSecond)),
      counters_(counters),
      silence_(members) {}

void PeerWatch::begin(Nanos now, const std::vector<Member>& awaited) {
  gap_ = std::min(now - looked_, 2 * kHostTick);
  looked_ = now;
  unresponsive_.clear();
  for (size_t m = 0; m < silence_.size(); m++) {
    if (std::find(awaited.begin(), awaited.end(), m) == awaited.end()) silence_[m] = {};
  }
}

Status PeerWatch::look_at(Member member, const HostPeer& peer) {
  Silence& s = silence_[member];
  const bool open = !peer.answered(s.asked);
  s.total = open ? s.total + gap_ : 0;
  if (s.total >= liveness_limit_) return HostPeer::silent(member, s.total, liveness_limit_);
  if (s.total >= kUnresponsive) unresponsive_.push_back(member);
  if (looked_ - s.at >= interval_) {
    if (open) {
      ring(peer.mailbox().bells[0].rings);
    } else {
      s.asked = peer.ask();
    }
    s.at = looked_;
    counters_.add(Counter::pings_sent);
  }
  return {};
}

}  // namespace mcast
