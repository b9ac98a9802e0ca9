// SHA-256, HMAC-SHA256 (RFC 2104) and HKDF-SHA256 (RFC 5869) by libcrypto. Needs an ok() of
// load_library(). Pure functions, any thread. `parts` are processed one after the other.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "base/types.h"
#include "crypto/key.h"

namespace mcast::crypto {

using Parts = std::span<const ConstBytes>;

inline ConstBytes bytes_of(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Digest sha256(Parts parts) noexcept;
Digest sha256(std::initializer_list<ConstBytes> parts) noexcept;

Digest hmac_sha256(ConstBytes key, Parts parts) noexcept;
Digest hmac_sha256(ConstBytes key, std::initializer_list<ConstBytes> parts) noexcept;

// Requires `salt` and `ikm` of at least one byte.
Key hkdf_extract(ConstBytes salt, ConstBytes ikm) noexcept;
// Fills `out`, at most 255 * 32 bytes.
void hkdf_expand(ConstBytes prk, ConstBytes info, Bytes out) noexcept;

// Returns true if the bytes are equal; its time does not depend on where they differ. The sizes are
// not secret.
bool same(ConstBytes a, ConstBytes b) noexcept;

// Returns true if the library can do all of the above. Called once by load_library().
bool digests_work() noexcept;

}  // namespace mcast::crypto
