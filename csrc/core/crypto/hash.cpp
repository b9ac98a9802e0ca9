// Thin calls of libcrypto: a context per call, since none of these runs for a chunk. Parameters of
// its key derivation are an array of names and places, which is built here by hand: the library's
// helpers for it are functions that would have to be looked up, too.
#include "crypto/hash.h"

#include "crypto/openssl.h"

namespace mcast::crypto {
namespace {

const unsigned char* raw(ConstBytes bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* raw(Bytes bytes) noexcept { return reinterpret_cast<unsigned char*>(bytes.data()); }

char g_sha256[] = "SHA256";

OSSL_PARAM text_param(const char* name, char* text, size_t size) noexcept {
  return {name, kParamText, text, size, kParamUnmodified};
}
OSSL_PARAM bytes_param(const char* name, ConstBytes bytes) noexcept {
  // (The library only reads the bytes.)
  return {name, kParamBytes, const_cast<std::byte*>(bytes.data()), bytes.size(), kParamUnmodified};
}

bool try_sha256(Parts parts, Digest& out) noexcept {
  const Libcrypto& lib = libcrypto();
  EVP_MD_CTX* const context = lib.EVP_MD_CTX_new();
  bool good = context != nullptr && lib.EVP_DigestInit_ex(context, lib.sha256, nullptr) == 1;
  for (const ConstBytes part : parts) {
    good = good && lib.EVP_DigestUpdate(context, part.data(), part.size()) == 1;
  }
  good = good && lib.EVP_DigestFinal_ex(context, raw(Bytes(out)), nullptr) == 1;
  lib.EVP_MD_CTX_free(context);
  return good;
}

bool try_hmac(ConstBytes key, Parts parts, Digest& out) noexcept {
  const Libcrypto& lib = libcrypto();
  EVP_MAC_CTX* const context = lib.EVP_MAC_CTX_new(lib.hmac);
  OSSL_PARAM params[] = {text_param(kMacDigest, g_sha256, sizeof g_sha256 - 1), kEndOfParams};
  bool good = context != nullptr && lib.EVP_MAC_init(context, raw(key), key.size(), params) == 1;
  for (const ConstBytes part : parts) {
    if (!part.empty()) good = good && lib.EVP_MAC_update(context, raw(part), part.size()) == 1;
  }
  size_t size = 0;
  good = good && lib.EVP_MAC_final(context, raw(Bytes(out)), &size, out.size()) == 1 &&
         size == out.size();
  lib.EVP_MAC_CTX_free(context);
  return good;
}

// mode: 1 extracts, 2 expands; `with`: the salt or the info.
bool try_hkdf(int mode, ConstBytes key, const char* with_name, ConstBytes with,
              Bytes out) noexcept {
  const Libcrypto& lib = libcrypto();
  EVP_KDF_CTX* const context = lib.EVP_KDF_CTX_new(lib.hkdf);
  OSSL_PARAM params[] = {{kKdfMode, kParamInteger, &mode, sizeof mode, kParamUnmodified},
                         text_param(kKdfDigest, g_sha256, sizeof g_sha256 - 1),
                         bytes_param(kKdfKey, key),
                         bytes_param(with_name, with),
                         kEndOfParams};
  const bool good =
      context != nullptr && lib.EVP_KDF_derive(context, raw(out), out.size(), params) == 1;
  lib.EVP_KDF_CTX_free(context);
  return good;
}

constexpr int kExtract = kHkdfExtract, kExpand = kHkdfExpand;

}  // namespace

Digest sha256(Parts parts) noexcept {
  Digest out;
  must(try_sha256(parts, out), "SHA-256");
  return out;
}
Digest sha256(std::initializer_list<ConstBytes> parts) noexcept {
  return sha256(Parts(parts.begin(), parts.size()));
}

Digest hmac_sha256(ConstBytes key, Parts parts) noexcept {
  Digest out;
  must(try_hmac(key, parts, out), "HMAC");
  return out;
}
Digest hmac_sha256(ConstBytes key, std::initializer_list<ConstBytes> parts) noexcept {
  return hmac_sha256(key, Parts(parts.begin(), parts.size()));
}

Key hkdf_extract(ConstBytes salt, ConstBytes ikm) noexcept {
  Key out;
  must(try_hkdf(kExtract, ikm, kKdfSalt, salt, out.place()), "HKDF-Extract");
  return out;
}

void hkdf_expand(ConstBytes prk, ConstBytes info, Bytes out) noexcept {
  must(try_hkdf(kExpand, prk, kKdfInfo, info, out), "HKDF-Expand");
}

bool same(ConstBytes a, ConstBytes b) noexcept {
  return a.size() == b.size() && libcrypto().CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool digests_work() noexcept {
  const ConstBytes one[] = {bytes_of("torch-mcast")};
  Digest digest, mac;
  Key key;
  return try_sha256(one, digest) && try_hmac(digest, one, mac) &&
         try_hkdf(kExtract, digest, kKdfSalt, mac, key.place()) &&
         try_hkdf(kExpand, digest, kKdfInfo, mac, key.place());
}

}  // namespace mcast::crypto
