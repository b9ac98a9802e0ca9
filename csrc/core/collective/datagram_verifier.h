// Verifiers authenticate a datagram, independently of how the group uses it: by checksum, or by the
// guard of a guarded group. Both have size(), verify() and payload(). Everything is inline, so that
// a group without a guard does not pay for the guarded case. A verifier lives as long as the call
// that passes in the datagram.
#pragma once

#include "base/counters.h"
#include "base/datagram_verdict.h"
#include "base/refusal.h"
#include "crypto/datagram_guard.h"
#include "wire/datagram.h"

namespace mcast {

class ChecksumVerifier {
 public:
  // datagram.size() >= kDatagramHeader.
  explicit ChecksumVerifier(ConstBytes datagram) : datagram_(datagram) {}
  size_t size() const { return datagram_.size() - wire::kDatagramHeader; }  // of the payload
  // Counts a failed check.
  DatagramVerdict verify(Counters& counters) {
    if (wire::verify_datagram(datagram_)) return DatagramVerdict::kVerified;
    counters.add(Counter::corrupt);
    return DatagramVerdict::kDamaged;
  }
  // Only after verify().
  ConstBytes payload() const { return datagram_.subspan(wire::kDatagramHeader); }

 private:
  ConstBytes datagram_;
};

class GuardVerifier {
 public:
  // The guard has already verified the header.
  GuardVerifier(crypto::DatagramGuard& guard, const wire::GuardedHeader& header,
                ConstBytes datagram, Nanos now)
      : guard_(guard), header_(header), datagram_(datagram), now_(now) {}
  size_t size() const { return datagram_.size() - wire::kGuardedHeader - wire::kDatagramTag; }
  DatagramVerdict verify(Counters& counters) {
    const DatagramVerdict verdict = guard_.open(header_, datagram_, payload_, now_);
    if (verdict == DatagramVerdict::kForged) counters.add(Counter::corrupt);
    return verdict;
  }
  ConstBytes payload() const { return payload_; }

 private:
  crypto::DatagramGuard& guard_;
  const wire::GuardedHeader& header_;
  ConstBytes datagram_;
  ConstBytes payload_;
  Nanos now_;
};

}  // namespace mcast
