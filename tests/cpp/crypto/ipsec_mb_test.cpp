// The declarations of ipsec-mb in crypto/ipsec_mb_abi.h match this machine's header, and the
// library seals and opens like libcrypto.
#include "crypto/ipsec_mb_abi.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "crypto/aead.h"
#include "crypto/bytes.h"
#include "crypto/library.h"

#if defined(__x86_64__)
#include <intel-ipsec-mb.h>

#include <type_traits>

namespace mcast::crypto {
namespace {

#define MCAST_SAME(type, name) \
  static_assert(std::is_same_v<decltype(&::aes_gcm_##name##_avx_gen4), abi::type>)
MCAST_SAME(GcmPre, pre_128);
MCAST_SAME(GcmPre, pre_256);
MCAST_SAME(GcmOnce, enc_128);
MCAST_SAME(GcmOnce, enc_256);
MCAST_SAME(GcmOnce, dec_128);
MCAST_SAME(GcmOnce, dec_256);
MCAST_SAME(GcmInit, init_128);
MCAST_SAME(GcmInit, init_256);
MCAST_SAME(GcmUpdate, enc_128_update);
MCAST_SAME(GcmUpdate, enc_256_update);
MCAST_SAME(GcmFinalize, enc_128_finalize);
MCAST_SAME(GcmFinalize, enc_256_finalize);
#undef MCAST_SAME
static_assert(std::is_same_v<decltype(&::imb_get_version), abi::GetVersion>);
static_assert(sizeof(gcm_key_data) <= abi::kGcmKeyRoom);
static_assert(sizeof(gcm_context_data) <= abi::kGcmStateRoom);

TEST(IpsecMb, IsUsableWhereTheCpuHasWhatItTakes) {
  ASSERT_TRUE(load_library().ok());
  const bool can = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("aes") != 0 &&
                   __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                   __builtin_cpu_supports("bmi2") != 0;
  const std::vector<std::byte> key(16);
  EXPECT_EQ(FastGcm::of(Suite::kAes128Gcm, key).has_value(), can);
  EXPECT_FALSE(FastGcm::of(Suite::kChaCha20Poly1305, key).has_value());
  EXPECT_EQ(fast_gcm_version().rfind("ipsec-mb 1.", 0) == 0, FastGcm::is_preferred());
  EXPECT_NE(library_version().find(fast_gcm_version()), std::string::npos);
}

// Each library opens what the other sealed: whole, in parts, with nothing to seal or nothing to
// authenticate; in place.
TEST(IpsecMb, SealsAndOpensWhatLibcryptoDoes) {
  ASSERT_TRUE(load_library().ok());
  const std::vector<std::byte> any(16);
  if (!FastGcm::of(Suite::kAes128Gcm, any)) return;  // unsupported CPU, as the test above reports
  Rng rng(11);
  for (const Suite suite : {Suite::kAes128Gcm, Suite::kAes256Gcm}) {
    for (size_t size = 0; size < 3000; size = size * 5 / 4 + 1) {
      std::vector<std::byte> key(key_size(suite)), text(size), aad(rng.below(2000));
      for (auto* bytes : {&key, &text, &aad}) {
        for (std::byte& b : *bytes) b = static_cast<std::byte>(rng.next());
      }
      auto fast = FastGcm::of(suite, key);
      auto seal = SealContext::by_libcrypto(suite, key);
      auto open = OpenContext::by_libcrypto(suite, key);
      ASSERT_TRUE(fast.has_value() && seal.ok() && open.ok());
      const Nonce nonce = make_nonce({}, rng.next());
      const size_t cut = rng.below(size + 1);
      const ConstBytes whole = text;
      const ConstBytes parts[] = {whole.first(cut), whole.subspan(cut)};
      std::vector<std::byte> mine(size + kTagSize), theirs(mine), back(size);
      const auto tag = [](auto& sealed) { return std::span(sealed).template last<kTagSize>(); };
      fast->seal(nonce.data(), aad, parts, mine.data(), tag(mine).data());
      ASSERT_TRUE(seal->seal(nonce, aad, {&whole, 1}, theirs.data(), tag(theirs)));
      ASSERT_EQ(hex(mine), hex(theirs)) << suite_name(suite) << ", " << size << " bytes";
      std::copy(text.begin(), text.end(), mine.begin());
      const ConstBytes there = ConstBytes(mine).first(size);
      fast->seal(nonce.data(), aad, {&there, 1}, mine.data(), tag(mine).data());
      ASSERT_EQ(hex(mine), hex(theirs)) << suite_name(suite) << ", in place, " << size;
      ASSERT_TRUE(fast->open(nonce.data(), aad, there, tag(mine).data(), back.data()));
      ASSERT_EQ(back, text);
      ASSERT_TRUE(open->open(nonce, aad, there, tag(mine), back.data()));
      mine[rng.below(mine.size())] ^= std::byte{0x20};
      ASSERT_FALSE(fast->open(nonce.data(), aad, there, tag(mine).data(), back.data()));
      ASSERT_FALSE(open->open(nonce, aad, there, tag(mine), back.data()));
    }
  }
}

}  // namespace
}  // namespace mcast::crypto
#endif
