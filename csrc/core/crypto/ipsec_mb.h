// AES-GCM by Intel's ipsec-mb, if the machine has it: one call per datagram instead of five of
// libcrypto's EVP, which saves a third of the time of a datagram of 1,400 bytes (docs/security.md,
// "What it costs"). Only for x86-64 with AVX2; libcrypto does everything else, and this too if it
// is in FIPS mode or `security_library` says so.
#pragma once

#include <optional>
#include <string>

#include "base/types.h"
#include "crypto/arena.h"
#include "crypto/ipsec_mb_abi.h"
#include "crypto/modes.h"

namespace mcast::crypto {

struct GcmFunctions {
#define MCAST_POINTER(member, type, ...) abi::type member = nullptr;
  MCAST_GCM_FUNCTIONS(MCAST_POINTER)
#undef MCAST_POINTER
};

// A key under which messages are sealed or opened. One thread at a time. No call allocates.
class FastGcm {
 public:
  // Nothing: the suite is not AES-GCM, the library is not available here, or there are no pages for
  // the key. Requires key.size() == key_size(suite).
  static std::optional<FastGcm> of(Suite suite, ConstBytes key);
  // Returns true if it is available and faster than libcrypto, and use_libcrypto_only() was not
  // called.
  static bool is_preferred();
  static std::optional<FastGcm> with(const GcmFunctions& functions, ConstBytes key);

  // As SealContext::seal() and OpenContext::open(); `nonce` has 12 bytes, `tag` 16.
  void seal(const std::byte* nonce, ConstBytes aad, std::span<const ConstBytes> parts,
            std::byte* out, std::byte* tag) noexcept;
  bool open(const std::byte* nonce, ConstBytes aad, ConstBytes ciphertext, const std::byte* tag,
            std::byte* out) noexcept;

 private:
  FastGcm(const GcmFunctions& functions, SecretPlace place)
      : functions_(&functions), place_(std::move(place)) {}
  gcm_key_data* key() const { return reinterpret_cast<gcm_key_data*>(place_.bytes().data()); }

  const GcmFunctions* functions_;
  SecretPlace place_;  // contains the expanded key
};

// Later keys of this process use libcrypto. Any thread.
void use_libcrypto_only() noexcept;

// "ipsec-mb 1.3.0"; empty if it is not used. Call after an ok() of load_library(), any thread.
std::string fast_gcm_version();

}  // namespace mcast::crypto
