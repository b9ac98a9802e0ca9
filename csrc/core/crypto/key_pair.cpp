// The library itself refuses a result of zeros; it is checked here again, since a later version
// might leave that to callers.
#include "crypto/key_pair.h"

#include <algorithm>

#include "crypto/openssl.h"

namespace mcast::crypto {

void KeyPair::Free::operator()(evp_pkey_st* key) const noexcept { libcrypto().EVP_PKEY_free(key); }

Result<KeyPair> KeyPair::make(std::span<const std::byte, 32> random) {
  const Libcrypto& lib = libcrypto();
  KeyPair pair;
  pair.pair_.reset(lib.EVP_PKEY_new_raw_private_key(
      kX25519, nullptr, reinterpret_cast<const unsigned char*>(random.data()), random.size()));
  size_t size = pair.public_.size();
  if (pair.pair_ == nullptr ||
      lib.EVP_PKEY_get_raw_public_key(
          pair.pair_.get(), reinterpret_cast<unsigned char*>(pair.public_.data()), &size) != 1 ||
      size != pair.public_.size()) {
    return Status(Code::kUnavailable, "libcrypto offers no X25519 here");
  }
  return pair;
}

Result<Key> KeyPair::shared(const PublicKey& other) const {
  const Libcrypto& lib = libcrypto();
  const std::unique_ptr<evp_pkey_st, Free> theirs(lib.EVP_PKEY_new_raw_public_key(
      kX25519, nullptr, reinterpret_cast<const unsigned char*>(other.data()), other.size()));
  EVP_PKEY_CTX* const context = lib.EVP_PKEY_CTX_new(pair_.get(), nullptr);
  Key out;
  size_t size = kKeySize;
  const bool good =
      theirs != nullptr && context != nullptr && lib.EVP_PKEY_derive_init(context) == 1 &&
      lib.EVP_PKEY_derive_set_peer(context, theirs.get()) == 1 &&
      lib.EVP_PKEY_derive(context, reinterpret_cast<unsigned char*>(out.place().data()), &size) ==
          1 &&
      size == kKeySize;
  lib.EVP_PKEY_CTX_free(context);
  std::byte any{};
  for (const std::byte b : out.bytes()) any |= b;
  if (!good || any == std::byte{0}) {
    return Status(Code::kInvalidArgument, "an X25519 key whose results are always zero");
  }
  return out;
}

}  // namespace mcast::crypto
