// Functions of libcrypto.so.3 by pointer, for the sources of this folder only; see
// crypto/library.h. After load_library() the table never changes. Any thread.
#pragma once

#include <type_traits>

#include "crypto/openssl_abi.h"

namespace mcast::crypto {

using namespace abi;

struct Libcrypto {
#define MCAST_POINTER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  MCAST_LIBCRYPTO_SYMBOLS(MCAST_POINTER)
#undef MCAST_POINTER
  // Fetched once: a fetch by name takes longer than sealing a chunk. Null: the library (or its
  // configuration, as in FIPS mode) does not have this algorithm.
  EVP_CIPHER* aes128gcm = nullptr;
  EVP_CIPHER* aes256gcm = nullptr;
  EVP_CIPHER* chacha20poly1305 = nullptr;
  EVP_MD* sha256 = nullptr;
  EVP_MAC* hmac = nullptr;
  EVP_KDF* hkdf = nullptr;
};

// Requires an earlier ok() of load_library().
const Libcrypto& libcrypto() noexcept;

// Called when the library refuses a call that worked before, which means that no memory is left:
// logs it and ends the process, as a failed allocation does. A missing key must not look like a
// valid one.
[[noreturn]] void out_of_memory(const char* what) noexcept;
inline void must(bool good, const char* what) noexcept {
  if (!good) out_of_memory(what);
}

}  // namespace mcast::crypto
