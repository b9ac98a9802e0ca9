// What makes the bytes of a datagram believable, apart from what a group does with them: a
// checksum, or the guard of a guarded group. Both have size(), verify() and payload(); all is
// inline, so that a group without a guard pays nothing for those that have one. A verifier lives as
// long as the call that brings the datagram.
#pragma once

#include <optional>

#include "base/counters.h"
#include "base/refusal.h"
#include "crypto/datagram_guard.h"
#include "wire/datagram.h"

namespace mcast {

// What has become of a datagram, for who counts what arrives and what is refused.
enum class Judged : uint8_t {
  kVerified,      // its checksum or tag is right, whatever it was good for
  kUnread,        // not wanted, so not verified: late, repeated, crowded out
  kOwn,           // our own, likewise
  kMalformed,     // no such datagram can be
  kDamaged,       // its checksum is wrong
  kForeign,       // of another lane
  kDowngraded,    // without the protection that the group has
  kForgedHeader,  // its sender has not the group's keys
  kForged,        // its tag is wrong
  kReplayed,      // it was sent before what has been taken of its kind
};

// What a refusal is counted as; nothing: it is none.
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
  // Counts what is wrong.
  Judged verify(Counters& counters) {
    if (wire::verify_datagram(datagram_)) return Judged::kVerified;
    counters.add(Counter::corrupt);
    return Judged::kDamaged;
  }
  // After verify().
  ConstBytes payload() const { return datagram_.subspan(wire::kDatagramHeader); }

 private:
  ConstBytes datagram_;
};

class GuardVerifier {
 public:
  // The guard has judged the header.
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
