// Identities of guarded endpoints for tests: each has its own key pair, and keys that a few records
// use up.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "crypto/handshake.h"
#include "crypto/library.h"

namespace mcast::testing {

inline crypto::EpochLimits few_records() {
  crypto::EpochLimits few;
  few.packets = 5;
  return few;
}

inline std::shared_ptr<const crypto::Identity> some_identity(
    crypto::Mode mode, unsigned secret = 1, const crypto::EpochLimits& limits = few_records()) {
  EXPECT_TRUE(crypto::load_library().ok());
  static unsigned count = 0;
  std::array<std::byte, 32> random;
  random.fill(static_cast<std::byte>(++count));
  random[1] = static_cast<std::byte>(count >> 8);
  auto pair = crypto::KeyPair::make(random);
  EXPECT_TRUE(pair.ok());
  const crypto::Key root =
      crypto::root_key(std::vector<std::byte>(16, static_cast<std::byte>(secret)));
  return std::make_shared<crypto::Identity>(crypto::Identity{
      mode, crypto::suite_bit(crypto::Suite::kAes128Gcm), crypto::Role::kRank,
      crypto::hello_key(root), crypto::mix_key(root), std::move(pair).value(), limits});
}

}  // namespace mcast::testing
