// The parts of libcrypto.so.3 that this folder uses, declared here: the library is loaded at run
// time, so its headers, which only an administrator can install, are not needed to build. Names,
// types and numbers are those of OpenSSL 3.0's public headers, whose stable ABI covers all of
// version 3; tests/cpp/crypto/openssl_abi_test.cpp compares them with the headers of this machine.
// None of these functions is linked.
#pragma once

#include <cstddef>

struct evp_cipher_ctx_st;
struct evp_pkey_st;

namespace mcast::crypto::abi {

struct EVP_CIPHER;
struct EVP_MD;
struct EVP_MD_CTX;
struct EVP_MAC;
struct EVP_MAC_CTX;
struct EVP_KDF;
struct EVP_KDF_CTX;
struct EVP_PKEY_CTX;
struct OSSL_LIB_CTX;
struct ENGINE;
using EVP_CIPHER_CTX = evp_cipher_ctx_st;
using EVP_PKEY = evp_pkey_st;

struct OSSL_PARAM {
  const char* key;
  unsigned int data_type;
  void* data;
  size_t data_size;
  size_t return_size;
};

inline constexpr unsigned int kParamEnd = 0, kParamInteger = 1, kParamText = 4, kParamBytes = 5;
inline constexpr size_t kParamUnmodified = static_cast<size_t>(-1);
inline constexpr OSSL_PARAM kEndOfParams{nullptr, kParamEnd, nullptr, 0, 0};
inline constexpr char kMacDigest[] = "digest", kKdfDigest[] = "digest", kKdfMode[] = "mode",
                      kKdfKey[] = "key", kKdfSalt[] = "salt", kKdfInfo[] = "info";
inline constexpr int kHkdfExtract = 1, kHkdfExpand = 2;
inline constexpr int kVersionText = 0;                // of OpenSSL_version()
inline constexpr int kX25519 = 1034;                  // EVP_PKEY_X25519
inline constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_*

// Each is X(name, type of its pointer).
// clang-format off
#define MCAST_LIBCRYPTO_SYMBOLS(X)                                                                 \
  X(OpenSSL_version, const char* (*)(int))                                                         \
  X(OPENSSL_version_major, unsigned int (*)())                                                     \
  X(OPENSSL_version_minor, unsigned int (*)())                                                     \
  X(EVP_default_properties_is_fips_enabled, int (*)(OSSL_LIB_CTX*))                                \
  X(CRYPTO_memcmp, int (*)(const void*, const void*, size_t))                                      \
  X(EVP_CIPHER_fetch, EVP_CIPHER* (*)(OSSL_LIB_CTX*, const char*, const char*))                    \
  X(EVP_CIPHER_CTX_new, EVP_CIPHER_CTX* (*)())                                                     \
  X(EVP_CIPHER_CTX_free, void (*)(EVP_CIPHER_CTX*))                                                \
  X(EVP_CIPHER_CTX_ctrl, int (*)(EVP_CIPHER_CTX*, int, int, void*))                                \
  X(EVP_EncryptInit_ex, int (*)(EVP_CIPHER_CTX*, const EVP_CIPHER*, ENGINE*,                       \
                                const unsigned char*, const unsigned char*))                       \
  X(EVP_EncryptUpdate, int (*)(EVP_CIPHER_CTX*, unsigned char*, int*, const unsigned char*, int))  \
  X(EVP_EncryptFinal_ex, int (*)(EVP_CIPHER_CTX*, unsigned char*, int*))                           \
  X(EVP_DecryptInit_ex, int (*)(EVP_CIPHER_CTX*, const EVP_CIPHER*, ENGINE*,                       \
                                const unsigned char*, const unsigned char*))                       \
  X(EVP_DecryptUpdate, int (*)(EVP_CIPHER_CTX*, unsigned char*, int*, const unsigned char*, int))  \
  X(EVP_DecryptFinal_ex, int (*)(EVP_CIPHER_CTX*, unsigned char*, int*))                           \
  X(EVP_MD_fetch, EVP_MD* (*)(OSSL_LIB_CTX*, const char*, const char*))                            \
  X(EVP_MD_CTX_new, EVP_MD_CTX* (*)())                                                             \
  X(EVP_MD_CTX_free, void (*)(EVP_MD_CTX*))                                                        \
  X(EVP_DigestInit_ex, int (*)(EVP_MD_CTX*, const EVP_MD*, ENGINE*))                               \
  X(EVP_DigestUpdate, int (*)(EVP_MD_CTX*, const void*, size_t))                                   \
  X(EVP_DigestFinal_ex, int (*)(EVP_MD_CTX*, unsigned char*, unsigned int*))                       \
  X(EVP_MAC_fetch, EVP_MAC* (*)(OSSL_LIB_CTX*, const char*, const char*))                          \
  X(EVP_MAC_CTX_new, EVP_MAC_CTX* (*)(EVP_MAC*))                                                   \
  X(EVP_MAC_CTX_free, void (*)(EVP_MAC_CTX*))                                                      \
  X(EVP_MAC_init, int (*)(EVP_MAC_CTX*, const unsigned char*, size_t, const OSSL_PARAM*))          \
  X(EVP_MAC_update, int (*)(EVP_MAC_CTX*, const unsigned char*, size_t))                           \
  X(EVP_MAC_final, int (*)(EVP_MAC_CTX*, unsigned char*, size_t*, size_t))                         \
  X(EVP_KDF_fetch, EVP_KDF* (*)(OSSL_LIB_CTX*, const char*, const char*))                          \
  X(EVP_KDF_CTX_new, EVP_KDF_CTX* (*)(EVP_KDF*))                                                   \
  X(EVP_KDF_CTX_free, void (*)(EVP_KDF_CTX*))                                                      \
  X(EVP_KDF_derive, int (*)(EVP_KDF_CTX*, unsigned char*, size_t, const OSSL_PARAM*))              \
  X(EVP_PKEY_new_raw_private_key, EVP_PKEY* (*)(int, ENGINE*, const unsigned char*, size_t))       \
  X(EVP_PKEY_new_raw_public_key, EVP_PKEY* (*)(int, ENGINE*, const unsigned char*, size_t))        \
  X(EVP_PKEY_get_raw_public_key, int (*)(const EVP_PKEY*, unsigned char*, size_t*))                \
  X(EVP_PKEY_free, void (*)(EVP_PKEY*))                                                            \
  X(EVP_PKEY_CTX_new, EVP_PKEY_CTX* (*)(EVP_PKEY*, ENGINE*))                                       \
  X(EVP_PKEY_CTX_free, void (*)(EVP_PKEY_CTX*))                                                    \
  X(EVP_PKEY_derive_init, int (*)(EVP_PKEY_CTX*))                                                  \
  X(EVP_PKEY_derive_set_peer, int (*)(EVP_PKEY_CTX*, EVP_PKEY*))                                   \
  X(EVP_PKEY_derive, int (*)(EVP_PKEY_CTX*, unsigned char*, size_t*))
// clang-format on

}  // namespace mcast::crypto::abi
