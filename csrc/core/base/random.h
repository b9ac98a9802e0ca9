// Random numbers nobody else can guess: group tags, incarnations, salts. For jitter and simulation
// use the seeded Rng of base/rng.h. Any thread.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace mcast {

// 64 bits from the kernel's generator. If the kernel refuses both getrandom() and /dev/urandom:
// fallback_random64() and one warning in the log.
uint64_t secure_random64() noexcept;

// Fills `out` from the kernel's generator, for keys and nonces. Returns false if the kernel
// refuses: no other source is fit for secrets.
bool secure_random_bytes(Bytes out) noexcept;

// Different for every call, process and fork, but NOT fit as a secret: derived from the 16 random
// bytes that the kernel gave this process at exec. Public for its test.
uint64_t fallback_random64() noexcept;

}  // namespace mcast
