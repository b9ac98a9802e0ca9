// A text with its MAC in a last line of its own, "mac=" and hex: values in a store, records between
// groups and aggregators. Needs an ok() of load_library(). Any thread.
#pragma once

#include <optional>
#include <string>

#include "crypto/kdf.h"

namespace mcast::crypto {

// The place of a text that is sent over the connection that the nonce names, in reply to the text
// with digest `about` (digest_text()). Both must outlive the result.
inline RecordPlace said_over(const std::string& nonce, const char* what,
                             std::string_view about = {}) {
  return {nonce, what, about, 0, 0};
}
std::string digest_text(std::string_view text);  // SHA-256 in hex

inline constexpr size_t kMacLineSize = 69;  // bytes that it adds

std::string with_mac(const Key& record_key, const RecordPlace& place, const std::string& text);
// The text; nothing: its MAC is wrong or missing.
std::optional<std::string> without_mac(const Key& record_key, const RecordPlace& place,
                                       const std::string& stored);

}  // namespace mcast::crypto
