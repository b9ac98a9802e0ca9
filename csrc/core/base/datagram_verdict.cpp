// Names of verdicts, and the counters of those that refuse a datagram.
#include "base/datagram_verdict.h"

namespace mcast {

const char* verdict_name(DatagramVerdict verdict) noexcept {
  switch (verdict) {
    case DatagramVerdict::kVerified:
      return "verified";
    case DatagramVerdict::kUnread:
      return "unread";
    case DatagramVerdict::kStale:
      return "stale";
    case DatagramVerdict::kCrowdedOut:
      return "crowded_out";
    case DatagramVerdict::kOwn:
      return "own";
    default:
      break;
  }
  const std::optional<Cause> cause = cause_of(verdict);
  return cause ? cause_name(*cause) : "unknown";
}

std::optional<Cause> cause_of(DatagramVerdict verdict) noexcept {
  switch (verdict) {
    case DatagramVerdict::kMalformed:
      return Cause::malformed;
    case DatagramVerdict::kDamaged:
      return Cause::damaged;
    case DatagramVerdict::kForeign:
      return Cause::foreign;
    case DatagramVerdict::kDowngraded:
      return Cause::downgraded;
    case DatagramVerdict::kForgedHeader:
      return Cause::forged_header;
    case DatagramVerdict::kForged:
      return Cause::forged;
    case DatagramVerdict::kReplayed:
      return Cause::replayed;
    default:
      return std::nullopt;
  }
}

}  // namespace mcast
