// Modes and ciphers that guard a group's traffic. The numbers are on the wire and in the derivation
// of keys. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mcast::crypto {

enum class Mode : uint8_t {
  kOff = 0,
  kAuth = 1,    // authenticated, not encrypted
  kSealed = 2,  // encrypted as well
};
enum class Suite : uint8_t { kAes128Gcm = 1, kAes256Gcm = 2, kChaCha20Poly1305 = 3 };
inline constexpr uint8_t kSuiteMax = 3;

constexpr size_t key_size(Suite suite) noexcept { return suite == Suite::kAes128Gcm ? 16 : 32; }
// A set of suites has one bit for each.
constexpr uint8_t suite_bit(Suite suite) noexcept {
  return static_cast<uint8_t>(1u << static_cast<unsigned>(suite));
}

// "off", "auth", "sealed"; "aes128gcm", "aes256gcm", "chacha20poly1305". parse_...(): nothing for
// other texts.
const char* mode_name(Mode mode) noexcept;
const char* suite_name(Suite suite) noexcept;
std::optional<Mode> parse_mode(std::string_view text) noexcept;
std::optional<Suite> parse_suite(std::string_view text) noexcept;

// Mode and suite in one byte: mode in the low four bits. Unpacking gives nothing if either is
// unknown or the mode is off.
constexpr uint8_t pack(Mode mode, Suite suite) noexcept {
  return static_cast<uint8_t>(static_cast<unsigned>(mode) | static_cast<unsigned>(suite) << 4);
}
struct ModeAndSuite {
  Mode mode;
  Suite suite;
  bool operator==(const ModeAndSuite&) const = default;
};
std::optional<ModeAndSuite> unpack(uint8_t byte) noexcept;

// Suites that are fast on this CPU: kAes128Gcm and kAes256Gcm only with instructions for AES and
// carry-less multiplication; kChaCha20Poly1305 always. `auto` takes AES-128 if every rank has it.
uint8_t fast_suites() noexcept;

}  // namespace mcast::crypto
