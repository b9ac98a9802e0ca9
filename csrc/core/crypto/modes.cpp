// Names of modes and suites, as users and records write them, and the CPU's abilities: the feature
// bits that it shows to unprivileged code, read once per call.
#include "crypto/modes.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace mcast::crypto {

const char* mode_name(Mode mode) noexcept {
  switch (mode) {
    case Mode::kOff:
      return "off";
    case Mode::kAuth:
      return "auth";
    case Mode::kSealed:
      return "sealed";
  }
  return "unknown";
}

const char* suite_name(Suite suite) noexcept {
  switch (suite) {
    case Suite::kAes128Gcm:
      return "aes128gcm";
    case Suite::kAes256Gcm:
      return "aes256gcm";
    case Suite::kChaCha20Poly1305:
      return "chacha20poly1305";
  }
  return "unknown";
}

std::optional<Mode> parse_mode(std::string_view text) noexcept {
  for (const Mode mode : {Mode::kOff, Mode::kAuth, Mode::kSealed}) {
    if (text == mode_name(mode)) return mode;
  }
  return std::nullopt;
}

std::optional<Suite> parse_suite(std::string_view text) noexcept {
  for (const Suite suite : {Suite::kAes128Gcm, Suite::kAes256Gcm, Suite::kChaCha20Poly1305}) {
    if (text == suite_name(suite)) return suite;
  }
  return std::nullopt;
}

std::optional<ModeAndSuite> unpack(uint8_t byte) noexcept {
  const unsigned mode = byte & 15u, suite = byte >> 4;
  if (mode < 1 || mode > 2 || suite < 1 || suite > kSuiteMax) return std::nullopt;
  return ModeAndSuite{static_cast<Mode>(mode), static_cast<Suite>(suite)};
}

uint8_t fast_suites() noexcept {
  bool aes = false;
#if defined(__x86_64__)
  aes = __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
  aes = (::getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL);
#endif
  uint8_t suites = suite_bit(Suite::kChaCha20Poly1305);
  if (aes) suites |= suite_bit(Suite::kAes128Gcm) | suite_bit(Suite::kAes256Gcm);
  return suites;
}

}  // namespace mcast::crypto
