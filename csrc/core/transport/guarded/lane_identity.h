// The identity of a guarded lane, which its endpoint and the guards of its groups share.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "base/config.h"
#include "base/status.h"
#include "crypto/budget.h"
#include "crypto/handshake.h"
#include "crypto/kdf.h"
#include "crypto/key_pair.h"
#include "crypto/secret.h"

namespace mcast {

// Identity of a guarded lane: the X25519 pair of its endpoint, made together with its uid and
// destroyed with it, and state that its groups share. Any thread, except where the lane's is
// mentioned.
class LaneIdentity {
 public:
  // For a lane with these settings. `role`: an aggregator's station uses the role's secret.
  // kUnavailable: the kernel has no random numbers that are fit for a key, or there is no library.
  static Result<std::shared_ptr<const LaneIdentity>> make(const Config& config,
                                                          const crypto::JobSecret& secret,
                                                          crypto::Role role = crypto::Role::kRank);
  const crypto::PublicKey& public_key() const { return public_; }
  // The secret shared with the owner of `other`.
  Result<crypto::Key> shared(const crypto::PublicKey& other) const;
  // For the lane's endpoint: the same pair.
  std::shared_ptr<const crypto::Identity> endpoint() const { return {endpoint_, &**endpoint_}; }
  // For the guards of the lane's groups.
  std::shared_ptr<crypto::OpenBudget> budget() const { return budget_; }

 private:
  using Endpoint = crypto::SecretBox<crypto::Identity>;
  LaneIdentity(crypto::KeyPair pair, Endpoint endpoint)
      : pair_(std::move(pair)),
        public_(pair_.public_key()),
        endpoint_(std::make_shared<Endpoint>(std::move(endpoint))),
        budget_(std::make_shared<crypto::OpenBudget>(crypto::BudgetLimits{}, budget_key())) {}
  static crypto::FilterKey budget_key();
  mutable std::mutex mutex_;  // a pair may be used by one thread at a time
  crypto::KeyPair pair_;
  const crypto::PublicKey public_;
  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<crypto::OpenBudget> budget_;
};

// The error where the kernel has no random numbers that are fit for a key.
Status no_random_numbers();

}  // namespace mcast
