// The way in which a root announces how far it has sent.
#pragma once

#include <cstdint>

namespace mcast {

enum class Announce : uint8_t { kNo, kMulticast, kStream };

}  // namespace mcast
