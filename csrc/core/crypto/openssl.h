// Functions of libcrypto.so.3 by pointer, for the sources of this folder only; see
// crypto/library.h. After load_library() the table never changes. Any thread.
#pragma once

#include <openssl/core_dispatch.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

namespace mcast::crypto {

// clang-format off
#define MCAST_LIBCRYPTO_SYMBOLS(X)                                                                 \
  X(OpenSSL_version) X(OPENSSL_version_major) X(CRYPTO_memcmp)                                     \
  X(EVP_CIPHER_fetch) X(EVP_CIPHER_CTX_new) X(EVP_CIPHER_CTX_free) X(EVP_CIPHER_CTX_ctrl)          \
  X(EVP_EncryptInit_ex) X(EVP_EncryptUpdate) X(EVP_EncryptFinal_ex)                                \
  X(EVP_DecryptInit_ex) X(EVP_DecryptUpdate) X(EVP_DecryptFinal_ex)                                \
  X(EVP_MD_fetch) X(EVP_MD_CTX_new) X(EVP_MD_CTX_free)                                             \
  X(EVP_DigestInit_ex) X(EVP_DigestUpdate) X(EVP_DigestFinal_ex)                                   \
  X(EVP_MAC_fetch) X(EVP_MAC_CTX_new) X(EVP_MAC_CTX_free)                                          \
  X(EVP_MAC_init) X(EVP_MAC_update) X(EVP_MAC_final)                                               \
  X(EVP_KDF_fetch) X(EVP_KDF_CTX_new) X(EVP_KDF_CTX_free) X(EVP_KDF_derive)                        \
  X(EVP_PKEY_new_raw_private_key) X(EVP_PKEY_new_raw_public_key) X(EVP_PKEY_get_raw_public_key)    \
  X(EVP_PKEY_free) X(EVP_PKEY_CTX_new) X(EVP_PKEY_CTX_free)                                        \
  X(EVP_PKEY_derive_init) X(EVP_PKEY_derive_set_peer) X(EVP_PKEY_derive)
// clang-format on

struct Libcrypto {
#define MCAST_POINTER(name) decltype(&::name) name = nullptr;
  MCAST_LIBCRYPTO_SYMBOLS(MCAST_POINTER)
#undef MCAST_POINTER
  // Fetched once: a fetch by name takes longer than sealing a chunk. Null: the library (or its
  // configuration, as in FIPS mode) has no such algorithm.
  EVP_CIPHER* aes128gcm = nullptr;
  EVP_CIPHER* aes256gcm = nullptr;
  EVP_CIPHER* chacha20poly1305 = nullptr;
  EVP_MD* sha256 = nullptr;
  EVP_MAC* hmac = nullptr;
  EVP_KDF* hkdf = nullptr;
};

// Only after an ok() of load_library().
const Libcrypto& libcrypto() noexcept;

// Where the library refuses what it has done before there is no memory left: says so and ends the
// process, as a failed allocation does. A key that is not there must not look like one that is.
[[noreturn]] void out_of_memory(const char* what) noexcept;
inline void must(bool good, const char* what) noexcept {
  if (!good) out_of_memory(what);
}

}  // namespace mcast::crypto
