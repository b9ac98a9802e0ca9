// The version of everything that ranks and aggregators send each other; docs/protocol.md.
#pragma once

#include <cstdint>

namespace mcast {

inline constexpr uint32_t kProtocolVersion = 17;

}  // namespace mcast
