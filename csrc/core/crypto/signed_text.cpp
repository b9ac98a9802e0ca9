// The MAC also covers where the text belongs (RecordPlace), so it is valid nowhere else.
#include "crypto/signed_text.h"

#include "base/hex.h"

namespace mcast::crypto {
namespace {

constexpr std::string_view kMacLine = "\nmac=";
constexpr size_t kMacChars = 64;

}  // namespace

std::string with_mac(const Key& record_key, const RecordPlace& place, const std::string& text) {
  return text + std::string(kMacLine) + hex_text(record_mac(record_key, place, text));
}

std::optional<std::string> without_mac(const Key& record_key, const RecordPlace& place,
                                       const std::string& stored) {
  static_assert(kMacLine.size() + kMacChars == kMacLineSize);
  if (stored.size() < kMacLineSize) return std::nullopt;
  const size_t at = stored.size() - kMacLineSize;
  if (stored.compare(at, kMacLine.size(), kMacLine) != 0) return std::nullopt;
  std::string text = stored.substr(0, at);
  const std::string mac = hex_text(record_mac(record_key, place, text));
  const std::string_view theirs = std::string_view(stored).substr(at + kMacLine.size());
  if (!same(bytes_of(theirs), bytes_of(mac))) return std::nullopt;
  return text;
}

std::string digest_text(std::string_view text) {
  return hex_text(sha256({std::as_bytes(std::span(text))}));
}

}  // namespace mcast::crypto
