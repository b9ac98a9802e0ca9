// Verifiers authenticate a datagram, independently of how the group uses it: by checksum, or by the
// guard of a guarded group. Both have size(), verify() and payload(). Everything is inline, so that
// a group without a guard does not pay for the guarded case. A verifier lives as long as the call
// that passes in the datagram.
#pragma once

#include <optional>

#include "base/counters.h"
#include "base/refusal.h"
#include "crypto/datagram_guard.h"
#include "wire/datagram.h"

namespace mcast {

// Outcome of handling one datagram; used for the receive and refusal counters.
enum class Judged : uint8_t {
  kVerified,      // checksum or tag is correct, whether the data was needed or not
  kUnread,        // not needed, so not verified: late, repeated, crowded out
  kOwn,           // sent by this member; not verified either
  kMalformed,     // no valid sender produces such a datagram
  kDamaged,       // wrong checksum
  kForeign,       // from another lane
  kDowngraded,    // lacks the protection that the group has
  kForgedHeader,  // the sender does not have the group's keys
  kForged,        // wrong tag
  kReplayed,      // older than datagrams of its kind that were accepted
};

// Counter of a refusal; nullopt if the datagram was not refused.
inline std::optional<Cause> cause_of(Judged judged) {
  switch (judged) {
    case Judged::kVerified:
    case Judged::kUnread:
    case Judged::kOwn:
      break;
    case Judged::kMalformed:
      return Cause::malformed;
    case Judged::kDamaged:
      return Cause::damaged;
    case Judged::kForeign:
      return Cause::foreign;
    case Judged::kDowngraded:
      return Cause::downgraded;
    case Judged::kForgedHeader:
      return Cause::forged_header;
    case Judged::kForged:
      return Cause::forged;
    case Judged::kReplayed:
      return Cause::replayed;
  }
  return std::nullopt;
}

class ChecksumVerifier {
 public:
  // datagram.size() >= kDatagramHeader.
  explicit ChecksumVerifier(ConstBytes datagram) : datagram_(datagram) {}
  size_t size() const { return datagram_.size() - wire::kDatagramHeader; }  // of the payload
  // Counts a failed check.
  Judged verify(Counters& counters) {
    if (wire::verify_datagram(datagram_)) return Judged::kVerified;
    counters.add(Counter::corrupt);
    return Judged::kDamaged;
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
  Judged verify(Counters& counters) {
    switch (guard_.open(header_, datagram_, payload_, now_)) {
      case crypto::Refusal::kNone:
        return Judged::kVerified;
      case crypto::Refusal::kCrowdedOut:
        return Judged::kUnread;
      default:
        counters.add(Counter::corrupt);
        return Judged::kForged;
    }
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
