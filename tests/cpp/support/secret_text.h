// Texts of secrets, as `torch-mcast secret new` writes them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/checksum.h"
#include "base/hex.h"
#include "crypto/secret.h"

namespace mcast::test {

inline std::string secret_text(ConstBytes secret) {
  const uint32_t sum = crc32c(secret);
  std::array<std::byte, 4> check;
  for (size_t i = 0; i < 4; i++) check[i] = static_cast<std::byte>(sum >> (24 - 8 * i));
  return crypto::kSecretPrefix + hex_text(secret) + "-" + hex_text(check);
}

// The text of a secret whose digits are all `digit`.
inline std::string secret_text(char digit) {
  std::array<std::byte, crypto::kSecretBytes> secret{};
  (void)from_hex(std::string(2 * secret.size(), digit), secret);
  return secret_text(secret);
}

}  // namespace mcast::test
