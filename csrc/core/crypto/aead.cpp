// Uses ipsec-mb if available; else EVP in the cheapest order: cipher and key are set once, every
// call sets only the nonce. Empty parts are skipped, since the library takes a call without bytes
// as the end.
#include "crypto/aead.h"

#include <string>

#include "crypto/openssl.h"

namespace mcast::crypto {
namespace {

unsigned char* out_of(std::byte* at) noexcept { return reinterpret_cast<unsigned char*>(at); }
const unsigned char* in_of(const std::byte* at) noexcept {
  return reinterpret_cast<const unsigned char*>(at);
}

const EVP_CIPHER* cipher(Suite suite) noexcept {
  switch (suite) {
    case Suite::kAes128Gcm:
      return libcrypto().aes128gcm;
    case Suite::kAes256Gcm:
      return libcrypto().aes256gcm;
    case Suite::kChaCha20Poly1305:
      return libcrypto().chacha20poly1305;
  }
  return nullptr;
}

Status check_key(Suite suite, ConstBytes key) {
  if (key.size() == key_size(suite)) return {};
  return Status(Code::kInternal,
                std::string("the key has the wrong size for ") + suite_name(suite));
}

Result<internal::Context> make_context(Suite suite, ConstBytes key, bool seals) {
  const EVP_CIPHER* const kind = cipher(suite);
  if (kind == nullptr) {
    return Status(Code::kUnavailable,
                  std::string("libcrypto offers no ") + suite_name(suite) + " here");
  }
  const Libcrypto& lib = libcrypto();
  internal::Context context(lib.EVP_CIPHER_CTX_new());
  const auto init = seals ? lib.EVP_EncryptInit_ex : lib.EVP_DecryptInit_ex;
  if (context == nullptr || init(context.get(), kind, nullptr, in_of(key.data()), nullptr) != 1) {
    return Status(Code::kResourceExhausted, "libcrypto cannot set up a key");
  }
  return context;
}

}  // namespace

void internal::FreeContext::operator()(evp_cipher_ctx_st* context) const noexcept {
  libcrypto().EVP_CIPHER_CTX_free(context);
}

Nonce make_nonce(const Nonce& iv, uint64_t number) noexcept {
  Nonce nonce = iv;
  for (size_t i = 0; i < 8; ++i) {
    nonce[kNonceSize - 1 - i] ^= static_cast<std::byte>(number >> (8 * i));
  }
  return nonce;
}

Result<SealContext> SealContext::make(Suite suite, ConstBytes key) {
  if (Status status = check_key(suite, key); !status.ok()) return status;
  if (FastGcm::is_preferred()) {
    if (auto fast = FastGcm::of(suite, key)) return SealContext(std::move(*fast));
  }
  return by_libcrypto(suite, key);
}

Result<SealContext> SealContext::by_libcrypto(Suite suite, ConstBytes key) {
  auto context = make_context(suite, key, true);
  if (!context.ok()) return context.status();
  return SealContext(std::move(context).value());
}

bool SealContext::seal(const Nonce& nonce, ConstBytes aad, Parts parts, std::byte* out,
                       std::span<std::byte, kTagSize> tag) noexcept {
  if (fast_) {
    fast_->seal(nonce.data(), aad, parts, out, tag.data());
    return true;
  }
  const Libcrypto& lib = libcrypto();
  EVP_CIPHER_CTX* const c = context_.get();
  if (lib.EVP_EncryptInit_ex(c, nullptr, nullptr, nullptr, in_of(nonce.data())) != 1) return false;
  int size = 0;
  if (!aad.empty() && lib.EVP_EncryptUpdate(c, nullptr, &size, in_of(aad.data()),
                                            static_cast<int>(aad.size())) != 1) {
    return false;
  }
  for (const ConstBytes part : parts) {
    if (part.empty()) continue;
    if (lib.EVP_EncryptUpdate(c, out_of(out), &size, in_of(part.data()),
                              static_cast<int>(part.size())) != 1 ||
        static_cast<size_t>(size) != part.size()) {
      return false;
    }
    out += part.size();
  }
  std::byte nothing[16];  // both are stream ciphers: the end adds no bytes
  return lib.EVP_EncryptFinal_ex(c, out_of(nothing), &size) == 1 && size == 0 &&
         lib.EVP_CIPHER_CTX_ctrl(c, kGetTag, kTagSize, tag.data()) == 1;
}

Result<OpenContext> OpenContext::make(Suite suite, ConstBytes key) {
  if (Status status = check_key(suite, key); !status.ok()) return status;
  if (FastGcm::is_preferred()) {
    if (auto fast = FastGcm::of(suite, key)) return OpenContext(std::move(*fast));
  }
  return by_libcrypto(suite, key);
}

Result<OpenContext> OpenContext::by_libcrypto(Suite suite, ConstBytes key) {
  auto context = make_context(suite, key, false);
  if (!context.ok()) return context.status();
  return OpenContext(std::move(context).value());
}

bool OpenContext::open(const Nonce& nonce, ConstBytes aad, ConstBytes ciphertext,
                       std::span<const std::byte, kTagSize> tag, std::byte* out) noexcept {
  if (fast_) return fast_->open(nonce.data(), aad, ciphertext, tag.data(), out);
  const Libcrypto& lib = libcrypto();
  EVP_CIPHER_CTX* const c = context_.get();
  if (lib.EVP_DecryptInit_ex(c, nullptr, nullptr, nullptr, in_of(nonce.data())) != 1) return false;
  int size = 0;
  if (!aad.empty() && lib.EVP_DecryptUpdate(c, nullptr, &size, in_of(aad.data()),
                                            static_cast<int>(aad.size())) != 1) {
    return false;
  }
  if (!ciphertext.empty() && (lib.EVP_DecryptUpdate(c, out_of(out), &size, in_of(ciphertext.data()),
                                                    static_cast<int>(ciphertext.size())) != 1 ||
                              static_cast<size_t>(size) != ciphertext.size())) {
    return false;
  }
  std::byte nothing[16];
  return lib.EVP_CIPHER_CTX_ctrl(c, kSetTag, kTagSize, const_cast<std::byte*>(tag.data())) == 1 &&
         lib.EVP_DecryptFinal_ex(c, out_of(nothing), &size) == 1;
}

}  // namespace mcast::crypto
