// Common parts of the targets of guarded connections: both ends, and an attacker between them.
#pragma once

#include <array>
#include <vector>

#include "crypto/handshake.h"
#include "crypto/library.h"
#include "fuzz.h"

namespace mcast::fuzz {

// A rank of the only job, with its own key pair.
inline crypto::Identity make_end(unsigned number) {
  using crypto::Suite;
  require(crypto::load_library().ok(), "libcrypto is there");
  std::array<std::byte, 32> random;
  random.fill(static_cast<std::byte>(number));
  auto pair = crypto::KeyPair::make(random);
  require(pair.ok(), "a key pair");
  const crypto::Key root = crypto::root_key(std::vector<std::byte>(16, std::byte{5}));
  const auto suites = static_cast<uint8_t>(crypto::suite_bit(Suite::kAes128Gcm) |
                                           crypto::suite_bit(Suite::kChaCha20Poly1305));
  return {crypto::Mode::kSealed, suites,
          crypto::Role::kRank,   crypto::hello_key(root),
          crypto::mix_key(root), std::move(pair).value(),
          crypto::EpochLimits()};
}

// Replaces bytes as the input specifies: place, value, and again while the next byte is odd.
// Returns true if the message was changed.
inline bool meddle(Input& input, Bytes message) {
  if (input.byte() % 4 != 1) return false;
  const std::vector<std::byte> before(message.begin(), message.end());
  do {
    const size_t at = input.byte();
    message[at % message.size()] = static_cast<std::byte>(input.byte());
  } while (input.byte() % 2 == 1);
  return !equal(before, message);
}

}  // namespace mcast::fuzz
