// libcrypto by dlopen. All symbols are looked up once and the algorithms fetched once, since both
// are slow; then SHA-256, HMAC and HKDF run once with typical inputs, so that a later failure can
// only mean that memory has run out. The library is opened with local visibility: other copies in
// the process (Python's ssl, torch's) are not affected.
#include "crypto/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/log.h"
#include "crypto/hash.h"
#include "crypto/ipsec_mb.h"
#include "crypto/openssl.h"

namespace mcast::crypto {
namespace {

constexpr const char* kName = "libcrypto.so.3";

Libcrypto g_table;

Status load_once() {
  void* const library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kUnavailable,
                  std::string("security needs ") + kName +
                      " (Debian: libssl3), which cannot be loaded: " + ::dlerror());
  }
  const char* missing = nullptr;
#define MCAST_FIND(name, ...)                                                       \
  g_table.name = reinterpret_cast<decltype(g_table.name)>(::dlsym(library, #name)); \
  if (g_table.name == nullptr) missing = #name;
  MCAST_LIBCRYPTO_SYMBOLS(MCAST_FIND)
#undef MCAST_FIND
  if (missing != nullptr) {
    return Status(Code::kUnavailable, std::string(kName) + " has no " + missing +
                                          ", which security needs: OpenSSL 3.0 or later has it");
  }
  g_table.aes128gcm = g_table.EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);
  g_table.aes256gcm = g_table.EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  g_table.chacha20poly1305 = g_table.EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr);
  g_table.sha256 = g_table.EVP_MD_fetch(nullptr, "SHA256", nullptr);
  g_table.hmac = g_table.EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  g_table.hkdf = g_table.EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  if (g_table.sha256 == nullptr || g_table.hmac == nullptr || g_table.hkdf == nullptr ||
      g_table.aes256gcm == nullptr || !digests_work()) {
    return Status(Code::kUnavailable, std::string(kName) +
                                          " does not offer SHA-256, HMAC, HKDF and AES-256-GCM "
                                          "here, which security needs: look at its openssl.cnf");
  }
  return {};
}

// Loaded by the first caller; the others wait.
const Status& loaded() {
  static const Status status = load_once();
  return status;
}

}  // namespace

Status load_library() { return loaded(); }

std::string library_version() {
  if (!loaded().ok()) return {};
  const std::string fast = fast_gcm_version();
  return std::string(g_table.OpenSSL_version(kVersionText)) + (fast.empty() ? "" : ", " + fast);
}

const Libcrypto& libcrypto() noexcept { return g_table; }

void out_of_memory(const char* what) noexcept {
  log(LogLevel::kError, "libcrypto failed in %s: no memory", what);
  std::abort();
}

}  // namespace mcast::crypto
