// Secrets and identities of simulated endpoints: random numbers are replaced by values derived from
// seeds, so that runs can be repeated. For simulations only.
//
// Requires that load_library() returned ok. Pure functions.
#pragma once

#include <array>
#include <memory>

#include "base/status.h"
#include "crypto/handshake.h"
#include "crypto/secret.h"

namespace mcast::sim {

// 32 bytes by a number.
std::array<std::byte, 32> seeded_bytes(uint64_t seed);
// The secret number `seed`, in the form that ranks have, or the one derived from it for
// aggregators.
Result<std::shared_ptr<const crypto::JobSecret>> seeded_secret(
    uint64_t seed, crypto::Role role = crypto::Role::kRank);

struct IdentitySpec {
  crypto::Mode mode = crypto::Mode::kSealed;
  crypto::Suite suite = crypto::Suite::kAes128Gcm;
  crypto::Role role = crypto::Role::kRank;
  crypto::EpochLimits limits;
  uint64_t seed = 1;  // of its key pair
};
// Like LaneIdentity::make() of runtime/security.h.
Result<std::shared_ptr<const crypto::Identity>> seeded_identity(const crypto::JobSecret& secret,
                                                                const IdentitySpec& spec);

}  // namespace mcast::sim
