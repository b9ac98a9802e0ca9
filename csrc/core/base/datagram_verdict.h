// The outcome of handling one received datagram, from the guard of a group to the counters of its
// lane.
#pragma once

#include <cstdint>
#include <optional>

#include "base/refusal.h"

namespace mcast {

enum class DatagramVerdict : uint8_t {
  kVerified,  // checksum or tag is correct, whether the data was needed or not
  // Not refused, and not verified:
  kUnread,      // not needed: late or repeated
  kStale,       // of an epoch that has ended, or too far ahead
  kCrowdedOut,  // not tried: too many have failed recently
  kOwn,         // sent by this member, looped back
  // Refused:
  kMalformed,     // no valid sender produces such a datagram
  kDamaged,       // wrong checksum
  kForeign,       // from another lane
  kDowngraded,    // lacks the protection that the group has, or has another one
  kForgedHeader,  // the filter is wrong: its sender does not have the group's keys
  kForged,        // wrong tag
  kReplayed,      // control that was accepted before, or is older than the window
};

const char* verdict_name(DatagramVerdict verdict) noexcept;

// Counter of a refusal; nullopt if the datagram was not refused.
std::optional<Cause> cause_of(DatagramVerdict verdict) noexcept;

// Whether the datagram was neither verified nor refused.
constexpr bool is_unread(DatagramVerdict verdict) noexcept {
  return verdict > DatagramVerdict::kVerified && verdict <= DatagramVerdict::kOwn;
}

}  // namespace mcast
