// Parses a received datagram and checks its header, as a lane and a group do.
#pragma once

#include "crypto/datagram_guard.h"

namespace mcast::test {

inline DatagramVerdict admit(crypto::DatagramGuard& guard, ConstBytes datagram,
                             wire::GuardedHeader& header, Nanos now) {
  switch (wire::parse_guarded(datagram, header)) {
    case wire::ParseError::kNone:
      return guard.judge(header, datagram, now);
    case wire::ParseError::kVersion:
      return DatagramVerdict::kDowngraded;
    default:
      return DatagramVerdict::kMalformed;
  }
}

}  // namespace mcast::test
