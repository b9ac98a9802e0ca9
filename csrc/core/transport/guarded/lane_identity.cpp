// The identity of a guarded lane: one pair of keys, held twice, and the budget of its guards.
#include "transport/guarded/lane_identity.h"

#include <array>

#include "base/random.h"
#include "crypto/ipsec_mb.h"
#include "crypto/library.h"

namespace mcast {

Status no_random_numbers() {
  return Status(Code::kUnavailable,
                "the kernel refuses random numbers (getrandom() and /dev/urandom), which a guarded "
                "group needs; allow one of them in the sandbox, or set security=off");
}

// The pair is made twice from the same bytes: the endpoint's copy belongs to the lane's thread.
Result<std::shared_ptr<const LaneIdentity>> LaneIdentity::make(const Config& config,
                                                               const crypto::JobSecret& secret,
                                                               crypto::Role role) {
  if (Status status = crypto::load_library(); !status.ok()) return status;
  if (config.security_library == "libcrypto") crypto::use_libcrypto_only();
  crypto::Identity endpoint;
  const auto mode = crypto::parse_mode(config.security);
  if (!mode) return Status(Code::kInternal, "security=" + config.security);
  endpoint.mode = *mode;
  const auto asked = crypto::parse_suite(config.security_suite);
  endpoint.suites = asked ? crypto::suite_bit(*asked) : crypto::fast_suites();
  endpoint.role = role;
  const bool rank = role == crypto::Role::kRank;
  if (rank) {
    endpoint.hello = secret.hello().clone();
    endpoint.mix = secret.mix().clone();
  }
  endpoint.role_hello = (rank ? secret.aggregators().hello : secret.hello()).clone();
  endpoint.role_mix = (rank ? secret.aggregators().mix : secret.mix()).clone();
  std::array<std::byte, 32> random;
  if (!secure_random_bytes(random)) return no_random_numbers();
  Result<crypto::KeyPair> pair = crypto::KeyPair::make(random);
  Result<crypto::KeyPair> same = crypto::KeyPair::make(random);
  crypto::wipe(random);
  if (!pair.ok()) return pair.status();
  if (!same.ok()) return same.status();
  endpoint.pair = std::move(same).value();
  Result<Endpoint> box = Endpoint::make(std::move(endpoint));
  if (!box.ok()) return box.status();
  return std::shared_ptr<const LaneIdentity>(
      new LaneIdentity(std::move(pair).value(), std::move(box).value()));
}

// (Without random numbers there is no identity, either.)
crypto::FilterKey LaneIdentity::budget_key() {
  crypto::FilterKey key{};
  (void)secure_random_bytes(key);
  return key;
}

Result<crypto::Key> LaneIdentity::shared(const crypto::PublicKey& other) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pair_.shared(other);
}

}  // namespace mcast
