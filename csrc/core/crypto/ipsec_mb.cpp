// The library by dlopen; only its first major version is supported. Whether its functions fit this
// CPU is decided here, since they do not check. Before they are used they must seal some messages
// exactly as libcrypto does: an incompatible library must not corrupt a byte.
#include "crypto/ipsec_mb.h"

#include <dlfcn.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <vector>

#include "base/log.h"
#include "crypto/aead.h"
#include "crypto/openssl.h"

namespace mcast::crypto {
namespace {

constexpr const char* kIpsecMb = "libIPSec_MB.so.1";

std::atomic<bool> g_libcrypto_only{false};

struct IpsecMb {
  bool usable = false, faster = false;
  unsigned version = 0;
  GcmFunctions of_128, of_256;
};

uint8_t* octets(std::byte* at) noexcept { return reinterpret_cast<uint8_t*>(at); }
const uint8_t* octets(const std::byte* at) noexcept { return reinterpret_cast<const uint8_t*>(at); }

// The library's functions for AVX2 are exported by names that its header defines; those for AVX-512
// can only be reached through its manager, whose layout is not stable.
constexpr const char* kForAvx2 = "avx_gen4";

bool cpu_has_what_it_takes() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
         __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
#else
  return false;
#endif
}

// Returns true if the CPU has AVX-512 and the AES and carry-less multiply instructions of its
// width.
bool cpu_is_wide() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // (Not every compiler's __builtin_cpu_supports knows VAES.)
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         (c & bit_VAES) != 0 && (c & bit_VPCLMULQDQ) != 0;
#else
  return false;
#endif
}

bool find_functions(void* library, const char* bits, GcmFunctions& functions) {
  bool all = true;
#define MCAST_FIND(member, type, before, after)                                   \
  functions.member = reinterpret_cast<abi::type>(                                 \
      ::dlsym(library, (std::string(before) + bits + after + kForAvx2).c_str())); \
  all = all && functions.member != nullptr;
  MCAST_GCM_FUNCTIONS(MCAST_FIND)
#undef MCAST_FIND
  return all;
}

}  // namespace

std::optional<FastGcm> FastGcm::with(const GcmFunctions& functions, ConstBytes key) {
  static_assert(kCipherPlace >= abi::kGcmKeyRoom && kCipherPlace % abi::kGcmAlignment == 0);
  Result<SecretPlace> place = SecretPlace::make(SecretPlace::Kind::kCipher);
  if (!place.ok()) return std::nullopt;
  FastGcm gcm(functions, std::move(place).value());
  functions.pre(key.data(), gcm.key());
  return gcm;
}

void FastGcm::seal(const std::byte* nonce, ConstBytes aad, std::span<const ConstBytes> parts,
                   std::byte* out, std::byte* tag) noexcept {
  alignas(abi::kGcmAlignment) std::byte state[abi::kGcmStateRoom];
  auto* const message = reinterpret_cast<gcm_context_data*>(state);
  if (parts.size() <= 1) {
    const ConstBytes text = parts.empty() ? ConstBytes() : parts[0];
    functions_->enc(key(), message, octets(out), octets(text.data()), text.size(), octets(nonce),
                    octets(aad.data()), aad.size(), octets(tag), kTagSize);
  } else {
    functions_->init(key(), message, octets(nonce), octets(aad.data()), aad.size());
    for (const ConstBytes part : parts) {
      if (part.empty()) continue;
      functions_->enc_update(key(), message, octets(out), octets(part.data()), part.size());
      out += part.size();
    }
    functions_->enc_finalize(key(), message, octets(tag), kTagSize);
  }
}

bool FastGcm::open(const std::byte* nonce, ConstBytes aad, ConstBytes ciphertext,
                   const std::byte* tag, std::byte* out) noexcept {
  alignas(abi::kGcmAlignment) std::byte state[abi::kGcmStateRoom];
  std::array<std::byte, kTagSize> right;
  functions_->dec(key(), reinterpret_cast<gcm_context_data*>(state), octets(out),
                  octets(ciphertext.data()), ciphertext.size(), octets(nonce), octets(aad.data()),
                  aad.size(), octets(right.data()), kTagSize);
  return libcrypto().CRYPTO_memcmp(right.data(), tag, kTagSize) == 0;
}

namespace {

// A message's sizes: of its text and of the additional authenticated data.
struct Sizes {
  size_t text, aad;
};

// Returns true if sealing gives the same bytes as libcrypto, in one piece, in several and in place,
// and opening succeeds, but fails with any changed bit.
bool same(FastGcm& gcm, SealContext& known, const Sizes& sizes) {
  std::vector<std::byte> text(sizes.text), aad(sizes.aad), back(sizes.text);
  std::vector<std::byte> one(sizes.text + kTagSize), other(one);
  for (size_t i = 0; i < sizes.text; i++) text[i] = static_cast<std::byte>(i * 7 + sizes.aad + 1);
  for (size_t i = 0; i < sizes.aad; i++) aad[i] = static_cast<std::byte>(i * 5 + sizes.text + 1);
  const Nonce nonce = make_nonce({}, 0x0123456789abcdef + sizes.text);
  const ConstBytes whole = text;
  const std::array<ConstBytes, 3> parts{whole.first(sizes.text / 3), ConstBytes(),
                                        whole.subspan(sizes.text / 3)};
  const auto tag = [](std::vector<std::byte>& sealed) {
    return std::span(sealed).last<kTagSize>();
  };
  if (!known.seal(nonce, aad, {&whole, 1}, one.data(), tag(one))) return false;
  gcm.seal(nonce.data(), aad, {&whole, 1}, other.data(), tag(other).data());
  if (one != other) return false;
  gcm.seal(nonce.data(), aad, parts, other.data(), tag(other).data());
  if (one != other) return false;
  std::copy(text.begin(), text.end(), other.begin());
  const ConstBytes place = ConstBytes(other).first(sizes.text);
  gcm.seal(nonce.data(), aad, {&place, 1}, other.data(), tag(other).data());
  if (one != other) return false;
  const auto opens = [&] {
    return gcm.open(nonce.data(), aad, place, tag(other).data(), back.data());
  };
  if (!opens() || back != text) return false;
  for (std::vector<std::byte>* bytes : {&other, &aad}) {
    if (bytes->empty()) continue;
    (*bytes)[bytes->size() / 2] ^= std::byte{1};
    if (opens()) return false;
    (*bytes)[bytes->size() / 2] ^= std::byte{1};
  }
  return true;
}

// Nothing: it cannot be determined now.
std::optional<bool> agrees(Suite suite, const GcmFunctions& functions, ConstBytes key) {
  auto known = SealContext::by_libcrypto(suite, key);
  auto gcm = FastGcm::with(functions, key);
  if (!known.ok() || !gcm) return std::nullopt;
  constexpr Sizes kSizes[] = {{0, 0},  {0, 8},   {0, 1432},  {0, 8920}, {1, 28},   {16, 28},
                              {31, 4}, {128, 0}, {1408, 28}, {1408, 8}, {4999, 97}};
  return std::all_of(std::begin(kSizes), std::end(kSizes),
                     [&](const Sizes& sizes) { return same(*gcm, *known, sizes); });
}

// Datagrams gain from fewer calls. But on a CPU with wider instructions OpenSSL uses them since
// 3.1, and seals large records several times as fast.
bool libcrypto_is_wider() noexcept {
  const bool later =
      libcrypto().OPENSSL_version_major() > 3 || libcrypto().OPENSSL_version_minor() >= 1;
  return later && cpu_is_wide();
}

IpsecMb find_ipsec_mb() {
  IpsecMb library;
  // In FIPS mode the user wants libcrypto's module and no other.
  if (!cpu_has_what_it_takes() ||
      libcrypto().EVP_default_properties_is_fips_enabled(nullptr) != 0) {
    return {};
  }
  void* const handle = ::dlopen(kIpsecMb, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {};
  const auto version = reinterpret_cast<abi::GetVersion>(::dlsym(handle, "imb_get_version"));
  library.version = version != nullptr ? version() : 0;
  if (library.version < abi::kOldestIpsecMb || library.version >= abi::kNextIpsecMb ||
      !find_functions(handle, "128", library.of_128) ||
      !find_functions(handle, "256", library.of_256)) {
    return {};
  }
  std::array<std::byte, 32> key;
  for (size_t i = 0; i < key.size(); i++) key[i] = static_cast<std::byte>(i * i + 3);
  const ConstBytes half = ConstBytes(key).first(16);
  const std::optional<bool> short_keys = agrees(Suite::kAes128Gcm, library.of_128, half),
                            long_keys = agrees(Suite::kAes256Gcm, library.of_256, key);
  library.usable = short_keys.value_or(false) && long_keys.value_or(false);
  if (!short_keys.value_or(true) || !long_keys.value_or(true)) {
    log(LogLevel::kWarn, "%s does not encrypt as libcrypto does; libcrypto is used instead",
        kIpsecMb);
  }
  library.faster = library.usable && !libcrypto_is_wider();
  return library;
}

const IpsecMb& ipsec_mb() {
  static const IpsecMb loaded = find_ipsec_mb();
  return loaded;
}

}  // namespace

std::optional<FastGcm> FastGcm::of(Suite suite, ConstBytes key) {
  if (suite == Suite::kChaCha20Poly1305 || !ipsec_mb().usable) return std::nullopt;
  return with(suite == Suite::kAes128Gcm ? ipsec_mb().of_128 : ipsec_mb().of_256, key);
}

bool FastGcm::is_preferred() {
  return !g_libcrypto_only.load(std::memory_order_relaxed) && ipsec_mb().faster;
}

void use_libcrypto_only() noexcept { g_libcrypto_only.store(true, std::memory_order_relaxed); }

std::string fast_gcm_version() {
  if (!FastGcm::is_preferred()) return {};
  const unsigned v = ipsec_mb().version;
  return "ipsec-mb " + std::to_string(v >> 16) + "." + std::to_string(v >> 8 & 0xff) + "." +
         std::to_string(v & 0xff);
}

}  // namespace mcast::crypto
