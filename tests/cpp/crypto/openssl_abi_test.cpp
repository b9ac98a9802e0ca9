// The declarations of libcrypto in crypto/openssl_abi.h match this machine's headers: every
// pointer's type, with the library's types instead of ours, and every number and name.
#include "crypto/openssl_abi.h"

#include <gtest/gtest.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <type_traits>

namespace mcast::crypto {
namespace {

// The list is included here, where its names refer to the library's types.
#define MCAST_SAME(name, ...) static_assert(std::is_same_v<decltype(&::name), __VA_ARGS__>, #name);
MCAST_LIBCRYPTO_SYMBOLS(MCAST_SAME)
#undef MCAST_SAME

static_assert(std::is_same_v<EVP_CIPHER_CTX, abi::EVP_CIPHER_CTX>);
static_assert(std::is_same_v<EVP_PKEY, abi::EVP_PKEY>);
static_assert(sizeof(OSSL_PARAM) == sizeof(abi::OSSL_PARAM));
static_assert(offsetof(OSSL_PARAM, key) == offsetof(abi::OSSL_PARAM, key));
static_assert(offsetof(OSSL_PARAM, data_type) == offsetof(abi::OSSL_PARAM, data_type));
static_assert(offsetof(OSSL_PARAM, data) == offsetof(abi::OSSL_PARAM, data));
static_assert(offsetof(OSSL_PARAM, data_size) == offsetof(abi::OSSL_PARAM, data_size));
static_assert(offsetof(OSSL_PARAM, return_size) == offsetof(abi::OSSL_PARAM, return_size));
static_assert(abi::kParamInteger == OSSL_PARAM_INTEGER &&
              abi::kParamText == OSSL_PARAM_UTF8_STRING);
static_assert(abi::kParamBytes == OSSL_PARAM_OCTET_STRING);
static_assert(abi::kParamUnmodified == OSSL_PARAM_UNMODIFIED);
static_assert(abi::kHkdfExtract == EVP_KDF_HKDF_MODE_EXTRACT_ONLY);
static_assert(abi::kHkdfExpand == EVP_KDF_HKDF_MODE_EXPAND_ONLY);
static_assert(abi::kVersionText == OPENSSL_VERSION && abi::kX25519 == EVP_PKEY_X25519);
static_assert(abi::kGetTag == EVP_CTRL_AEAD_GET_TAG && abi::kSetTag == EVP_CTRL_AEAD_SET_TAG);

TEST(OpensslAbi, NamesOfParametersAreTheLibrarys) {
  EXPECT_STREQ(abi::kMacDigest, OSSL_MAC_PARAM_DIGEST);
  EXPECT_STREQ(abi::kKdfDigest, OSSL_KDF_PARAM_DIGEST);
  EXPECT_STREQ(abi::kKdfMode, OSSL_KDF_PARAM_MODE);
  EXPECT_STREQ(abi::kKdfKey, OSSL_KDF_PARAM_KEY);
  EXPECT_STREQ(abi::kKdfSalt, OSSL_KDF_PARAM_SALT);
  EXPECT_STREQ(abi::kKdfInfo, OSSL_KDF_PARAM_INFO);
}

}  // namespace
}  // namespace mcast::crypto
