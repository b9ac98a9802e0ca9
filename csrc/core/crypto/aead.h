// Authenticated encryption: AES-GCM (NIST SP 800-38D) and ChaCha20-Poly1305 (RFC 8439), with 96-bit
// nonces and 128-bit tags, by libcrypto; AES-GCM by ipsec-mb if available. One context per key:
// expanding a key takes longer than sealing a chunk, so only the nonce is set per call. A sealer
// must never use a nonce twice under one key: see SealKey of crypto/datagram_guard.h, which is the
// only way to seal a datagram.
//
// Needs an ok() of load_library(). A context belongs to one thread at a time. No call allocates.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "base/status.h"
#include "base/types.h"
#include "crypto/hash.h"
#include "crypto/ipsec_mb.h"
#include "crypto/modes.h"

struct evp_cipher_ctx_st;

namespace mcast::crypto {

inline constexpr size_t kNonceSize = 12;
inline constexpr size_t kTagSize = 16;
using Nonce = std::array<std::byte, kNonceSize>;

// iv XOR (32 zero bits, then `number`, big-endian): under one key, another nonce for each number.
Nonce make_nonce(const Nonce& iv, uint64_t number) noexcept;

namespace internal {
struct FreeContext {
  void operator()(evp_cipher_ctx_st* context) const noexcept;
};
using Context = std::unique_ptr<evp_cipher_ctx_st, FreeContext>;
}  // namespace internal

class SealContext {
 public:
  // key.size() == key_size(suite). kUnavailable: the library has no such cipher here.
  static Result<SealContext> make(Suite suite, ConstBytes key);
  static Result<SealContext> by_libcrypto(Suite suite, ConstBytes key);

  // The tag covers `aad`, then the bytes of `parts`. Their ciphertext goes to `out`, which has room
  // for all of them and may begin where the only part begins, but not overlap otherwise. Returns
  // false if the library has failed; the bytes in `out` are then not a ciphertext.
  bool seal(const Nonce& nonce, ConstBytes aad, Parts parts, std::byte* out,
            std::span<std::byte, kTagSize> tag) noexcept;

 private:
  explicit SealContext(FastGcm fast) noexcept : fast_(std::move(fast)) {}
  explicit SealContext(internal::Context context) noexcept : context_(std::move(context)) {}
  std::optional<FastGcm> fast_;
  internal::Context context_;  // if there is no fast one
};

class OpenContext {
 public:
  static Result<OpenContext> make(Suite suite, ConstBytes key);
  static Result<OpenContext> by_libcrypto(Suite suite, ConstBytes key);

  // Returns true if the tag is right; `out` then contains the text (as long as the ciphertext). If
  // it returns false, no argument may be trusted, and the bytes in `out` are meaningless.
  bool open(const Nonce& nonce, ConstBytes aad, ConstBytes ciphertext,
            std::span<const std::byte, kTagSize> tag, std::byte* out) noexcept;

 private:
  explicit OpenContext(FastGcm fast) noexcept : fast_(std::move(fast)) {}
  explicit OpenContext(internal::Context context) noexcept : context_(std::move(context)) {}
  std::optional<FastGcm> fast_;
  internal::Context context_;  // if there is no fast one
};

}  // namespace mcast::crypto
