// Data from the network that was refused: cause and source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/ip_address.h"

namespace mcast {

// name, help, behaviour of its source (for a warning).
#define MCAST_CAUSES(X)                                                                      \
  X(foreign, "datagrams or frames of no group here: another job at the same address",        \
    "sends datagrams or frames of no group here: another job at the same address")           \
  X(malformed, "datagrams or frames that do not parse",                                      \
    "sends datagrams or frames that do not parse")                                           \
  X(damaged, "datagrams or frames whose checksum is wrong",                                  \
    "sends damaged datagrams or frames (CRC-32C)")                                           \
  X(downgraded, "datagrams without the protection that their group has",                     \
    "sends datagrams without the protection that the group has: forgery, or other settings") \
  X(forged_header, "datagrams whose sender does not have the group's keys",                  \
    "sends datagrams without the group's keys: forgery, or a job at the same address")       \
  X(forged, "datagrams whose tag is wrong: changed on the way, or forged",                   \
    "sends datagrams that were changed or forged")                                           \
  X(replayed, "control datagrams that had already arrived before",                           \
    "repeats control datagrams that were sent before")                                       \
  X(source_moved,                                                                            \
    "datagrams of a member, late, repeated or our own, that came from another address",      \
    "repeats datagrams of a member: a replay, a relay, or a member behind a NAT")            \
  X(not_allowed, "connections from addresses outside of the setting allow",                  \
    "connects, but is in none of the networks in MCAST_ALLOW")                               \
  X(hello_refused, "connections that began with garbage, or were for somebody else",         \
    "connects without a valid Hello")                                                        \
  X(hello_timeouts, "connections that sent nothing in time", "connects and sends nothing")   \
  X(crowded_out, "connections that others displaced, or for which there was no room",        \
    "holds more connections from unknown senders than there is room for")                    \
  X(storm, "seconds in which more than 10,000 messages were refused",                        \
    "sends a storm of messages that are refused")

enum class Cause : uint8_t {
#define MCAST_CAUSE_ENUM(name, help, does) name,
  MCAST_CAUSES(MCAST_CAUSE_ENUM)
#undef MCAST_CAUSE_ENUM
      kCount
};
inline constexpr size_t kCauses = static_cast<size_t>(Cause::kCount);

const char* cause_name(Cause cause) noexcept;
const char* cause_help(Cause cause) noexcept;
const char* cause_does(Cause cause) noexcept;

// The sender of a message; no address: unknown.
struct Source : Endpoint {
  std::string host_text() const { return address.known() ? address.text() : "an unknown source"; }
  std::string text() const { return address.known() && port != 0 ? Endpoint::text() : host_text(); }
};

}  // namespace mcast
