// Seeded random numbers: splitmix64 (Steele, Lea, Flood 2014). Small, fast, good enough for jitter,
// fault injection and simulation; never for secrets. The seed is always an argument, so that every
// simulated run can be repeated.
#pragma once

#include <cstdint>

namespace mcast {

// Also used to mix integers into well-distributed hash values.
inline uint64_t mix64(uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) noexcept : state_(seed) {}

  uint64_t next() noexcept { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform in [0, bound); bound > 0.
  uint64_t below(uint64_t bound) noexcept {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double probability) noexcept { return probability > 0 && unit() < probability; }

 private:
  uint64_t state_;
};

}  // namespace mcast
