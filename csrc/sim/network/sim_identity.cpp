// Bytes come from a generator that any program can compute: they are not secret.
#include "sim/network/sim_identity.h"

#include "base/rng.h"
#include "crypto/kdf.h"
#include "wire/bytes.h"

namespace mcast::sim {

std::array<std::byte, 32> seeded_bytes(uint64_t seed) {
  Rng rng(mix64(seed + 0x736563726574));
  std::array<std::byte, 32> bytes;
  for (size_t at = 0; at < bytes.size(); at += 8) wire::store<uint64_t>(&bytes[at], rng.next());
  return bytes;
}

Result<std::shared_ptr<const crypto::JobSecret>> seeded_secret(uint64_t seed, crypto::Role role) {
  const auto secret = seeded_bytes(seed);
  if (role == crypto::Role::kRank) return crypto::JobSecret::make(secret, "a seed");
  const crypto::Key own = crypto::role_key(crypto::root_key(secret), static_cast<uint8_t>(role),
                                           crypto::kAggregatorName);
  return crypto::JobSecret::make(own.bytes(), "a seed");
}

Result<std::shared_ptr<const crypto::Identity>> seeded_identity(const crypto::JobSecret& secret,
                                                                const IdentitySpec& spec) {
  auto identity = std::make_shared<crypto::Identity>();
  identity->mode = spec.mode;
  identity->suites = crypto::suite_bit(spec.suite);
  identity->role = spec.role;
  identity->limits = spec.limits;
  const bool rank = spec.role == crypto::Role::kRank;
  if (rank) {
    identity->hello = secret.hello().clone();
    identity->mix = secret.mix().clone();
  }
  identity->role_hello = (rank ? secret.aggregators().hello : secret.hello()).clone();
  identity->role_mix = (rank ? secret.aggregators().mix : secret.mix()).clone();
  auto pair = crypto::KeyPair::make(seeded_bytes(spec.seed));
  if (!pair.ok()) return pair.status();
  identity->pair = std::move(pair).value();
  return std::shared_ptr<const crypto::Identity>(std::move(identity));
}

}  // namespace mcast::sim
