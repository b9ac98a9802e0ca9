// X25519 (RFC 7748) by libcrypto. Needs an ok() of load_library(). A pair belongs to one thread.
#pragma once

#include <array>
#include <memory>

#include "base/status.h"
#include "crypto/key.h"

struct evp_pkey_st;

namespace mcast::crypto {

using PublicKey = std::array<std::byte, 32>;

class KeyPair {
 public:
  // Made from 32 random bytes, which the caller wipes. kUnavailable: the library has no X25519
  // here.
  static Result<KeyPair> make(std::span<const std::byte, 32> random);

  const PublicKey& public_key() const noexcept { return public_; }
  // The secret shared by this pair and the other. kInvalidArgument: the other's key is one of those
  // for which the result is zero whatever this key is (RFC 7748, section 6.1).
  Result<Key> shared(const PublicKey& other) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const noexcept;
  };
  std::unique_ptr<evp_pkey_st, Free> pair_;
  PublicKey public_{};
};

}  // namespace mcast::crypto
