// Checks the primitives with the vectors of their standards: our calls must give the standard's
// results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "crypto/aead.h"
#include "crypto/bytes.h"
#include "crypto/filter.h"
#include "crypto/hash.h"
#include "crypto/key_pair.h"
#include "crypto/library.h"

namespace mcast::crypto {
namespace {

using ::testing::StartsWith;

class Primitives : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status loaded = load_library();
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
  }
};

std::string sealed(Suite suite, std::string_view key, std::string_view nonce, std::string_view aad,
                   std::string_view text) {
  auto context = SealContext::make(suite, unhex(key));
  EXPECT_TRUE(context.ok()) << context.status().to_string();
  const std::vector<std::byte> extra = unhex(aad), plain = unhex(text);
  std::vector<std::byte> out(plain.size() + kTagSize);
  const ConstBytes parts[] = {plain};
  EXPECT_TRUE(context->seal(array_of<kNonceSize>(unhex(nonce)), extra, parts, out.data(),
                            std::span(out).last<kTagSize>()));
  return hex(out);
}

TEST_F(Primitives, TheLibraryTellsItsVersion) {
  EXPECT_THAT(library_version(), StartsWith("OpenSSL "));
}

TEST_F(Primitives, Sha256) {  // FIPS 180-4's examples, the second in parts
  EXPECT_EQ(hex(sha256({bytes_of("abc")})),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256({bytes_of("abcdbcdecdefdefgefghfghighij"), ConstBytes{},
                        bytes_of("hijkijkljklmklmnlmnomnopnopq")})),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_F(Primitives, Hmac) {  // RFC 4231, cases 1, 2 (in parts) and 6
  EXPECT_EQ(hex(hmac_sha256(std::vector<std::byte>(20, std::byte{0x0b}), {bytes_of("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), {bytes_of("what do ya want "), ConstBytes{},
                                               bytes_of("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::vector<std::byte>(131, std::byte{0xaa}),
                            {bytes_of("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

std::string expanded(const Key& prk, ConstBytes info, size_t size) {
  std::vector<std::byte> out(size);
  hkdf_expand(prk.bytes(), info, out);
  return hex(out);
}

TEST_F(Primitives, Hkdf) {  // RFC 5869, A.1 and A.2
  const Key first = hkdf_extract(unhex("000102030405060708090a0b0c"),
                                 std::vector<std::byte>(22, std::byte{0x0b}));
  EXPECT_EQ(hex(first.bytes()), "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  EXPECT_EQ(expanded(first, unhex("f0f1f2f3f4f5f6f7f8f9"), 42),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  const auto run = [](unsigned from, unsigned to) {
    std::vector<std::byte> out;
    for (unsigned i = from; i <= to; ++i) out.push_back(static_cast<std::byte>(i));
    return out;
  };
  const Key second = hkdf_extract(run(0x60, 0xaf), run(0, 0x4f));
  EXPECT_EQ(hex(second.bytes()),
            "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244");
  EXPECT_EQ(
      expanded(second, run(0xb0, 0xff), 82),
      "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c6"
      "5e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87");
}

TEST_F(Primitives, X25519) {  // RFC 7748, 6.1
  const auto alice = KeyPair::make(
      array_of<32>(unhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")));
  const auto bob = KeyPair::make(
      array_of<32>(unhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")));
  ASSERT_TRUE(alice.ok() && bob.ok());
  EXPECT_EQ(hex(alice->public_key()),
            "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
  EXPECT_EQ(hex(bob->public_key()),
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
  const auto one = alice->shared(bob->public_key()), other = bob->shared(alice->public_key());
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(hex(one->bytes()), "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
  EXPECT_EQ(hex(one->bytes()), hex(other->bytes()));
}

// Points of small order: their multiples are zero for any private key.
TEST_F(Primitives, X25519RefusesZeros) {
  const auto pair = KeyPair::make(array_of<32>(std::vector<std::byte>(32, std::byte{7})));
  ASSERT_TRUE(pair.ok());
  for (const char* point : {"0000000000000000000000000000000000000000000000000000000000000000",
                            "0100000000000000000000000000000000000000000000000000000000000000",
                            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"}) {
    EXPECT_EQ(pair->shared(array_of<32>(unhex(point))).status().code(), Code::kInvalidArgument)
        << point;
  }
}

TEST_F(Primitives, Aes128Gcm) {  // McGrew and Viega, test cases 3 and 4 (of NIST's collection)
  constexpr std::string_view key = "feffe9928665731c6d6a8f9467308308",
                             nonce = "cafebabefacedbaddecaf888",
                             text =
                                 "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
                                 "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
                             cipher =
                                 "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
                                 "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985";
  EXPECT_EQ(sealed(Suite::kAes128Gcm, key, nonce, "", text),
            std::string(cipher) + "4d5c2af327cd64a62cf35abd2ba6fab4");
  EXPECT_EQ(sealed(Suite::kAes128Gcm, key, nonce, "feedfacedeadbeeffeedfacedeadbeefabaddad2",
                   text.substr(0, 120)),
            std::string(cipher.substr(0, 120)) + "5bc94fbc3221a5db94fae95ae7121a47");
  // Case 1: a tag alone.
  EXPECT_EQ(sealed(Suite::kAes128Gcm, std::string(32, '0'), std::string(24, '0'), "", ""),
            "58e2fccefa7e3061367f1d57a4e7455a");
}

TEST_F(Primitives, Aes256Gcm) {  // case 16
  EXPECT_EQ(
      sealed(Suite::kAes256Gcm, "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
             "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2",
             "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
             "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"),
      "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
      "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
      "76fc6ece0f4e1768cddf8853bb2d551b");
}

TEST_F(Primitives, ChaCha20Poly1305) {  // RFC 8439, 2.8.2
  const std::string text =
      "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
      "sunscreen would be it.";
  EXPECT_EQ(sealed(Suite::kChaCha20Poly1305,
                   "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
                   "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7", hex(bytes_of(text))),
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
            "3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
            "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
            "3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691");
}

// The result does not depend on how the text is split; the sealed text opens, and any changed one
// does not.
TEST_F(Primitives, PartsAndFlippedBits) {
  Rng rng(5);
  for (const Suite suite : {Suite::kAes128Gcm, Suite::kAes256Gcm, Suite::kChaCha20Poly1305}) {
    std::vector<std::byte> key(key_size(suite)), text(777), aad(40);
    for (auto* bytes : {&key, &text, &aad}) {
      for (std::byte& b : *bytes) b = static_cast<std::byte>(rng.next());
    }
    auto seal = SealContext::make(suite, key);
    auto open = OpenContext::make(suite, key);
    ASSERT_TRUE(seal.ok() && open.ok());
    const Nonce nonce = make_nonce({}, 77);
    std::vector<std::byte> once(text.size() + kTagSize), cut(once.size()), back(text.size());
    const ConstBytes whole[] = {text}, extra = aad;
    const ConstBytes parts[] = {ConstBytes(text).first(13), ConstBytes{},
                                ConstBytes(text).subspan(13, 300), ConstBytes(text).subspan(313)};
    ASSERT_TRUE(seal->seal(nonce, extra, whole, once.data(), std::span(once).last<kTagSize>()));
    ASSERT_TRUE(seal->seal(nonce, extra, parts, cut.data(), std::span(cut).last<kTagSize>()));
    EXPECT_EQ(hex(once), hex(cut));
    const auto opens = [&] {
      return open->open(nonce, extra, ConstBytes(cut).first(text.size()),
                        std::span<const std::byte>(cut).last<kTagSize>(), back.data());
    };
    ASSERT_TRUE(opens());
    EXPECT_EQ(back, text);
    for (size_t i = 0; i < cut.size(); i += 11) {
      cut[i] ^= std::byte{4};
      EXPECT_FALSE(opens()) << i;
      cut[i] ^= std::byte{4};
    }
    for (std::byte& b : aad) {
      b ^= std::byte{1};
      EXPECT_FALSE(opens());
      b ^= std::byte{1};
    }
    EXPECT_FALSE(open->open(make_nonce({}, 78), extra, ConstBytes(cut).first(text.size()),
                            std::span<const std::byte>(cut).last<kTagSize>(), back.data()));
    EXPECT_TRUE(opens()) << "failures before leave no trace";
    // In place.
    ASSERT_TRUE(seal->seal(nonce, extra, whole, text.data(), std::span(cut).last<kTagSize>()));
    EXPECT_EQ(hex(text), hex(ConstBytes(once).first(text.size())));
  }
}

TEST_F(Primitives, KeyOfAnotherSizeIsRefused) {
  EXPECT_EQ(SealContext::make(Suite::kAes128Gcm, std::vector<std::byte>(32)).status().code(),
            Code::kInternal);
  EXPECT_EQ(OpenContext::make(Suite::kAes256Gcm, std::vector<std::byte>(16)).status().code(),
            Code::kInternal);
}

TEST(Nonces, AreTheIvXorTheNumberBigEndian) {
  const Nonce iv = array_of<kNonceSize>(unhex("ff00ff00ff00ff00ff00ff00"));
  EXPECT_EQ(hex(make_nonce(iv, 0)), hex(iv));
  EXPECT_EQ(hex(make_nonce(iv, 0x0102030405060708)), "ff00ff00fe02fc04fa06f808");
}

// CPython hashes bytes with SipHash-1-3, and with a key of zeros under PYTHONHASHSEED=0:
//   PYTHONHASHSEED=0 python3.11 -c 'print(hex(hash(b"abc") & (2**64 - 1)))'
TEST(Filter, SipHashAsInPython) {
  const FilterKey zeros{};
  EXPECT_EQ(siphash13(zeros, bytes_of("a")), 0x407448d2b89b1813u);
  EXPECT_EQ(siphash13(zeros, bytes_of("abc")), 0xc03bc3a0042630f2u);
  std::array<std::byte, 36> run;
  for (size_t i = 0; i < run.size(); ++i) run[i] = static_cast<std::byte>(i);
  EXPECT_EQ(siphash13(zeros, ConstBytes(run).first(8)), 0xead411e67ebe2eeau);
  EXPECT_EQ(siphash13(zeros, run), 0xac77921fcc642bd3u);
}

TEST(Suites, AreNamedAndPacked) {
  for (const Mode mode : {Mode::kAuth, Mode::kSealed}) {
    EXPECT_EQ(parse_mode(mode_name(mode)), mode);
    for (const Suite suite : {Suite::kAes128Gcm, Suite::kAes256Gcm, Suite::kChaCha20Poly1305}) {
      EXPECT_EQ(parse_suite(suite_name(suite)), suite);
      const auto back = unpack(pack(mode, suite));
      ASSERT_TRUE(back);
      EXPECT_EQ(*back, (ModeAndSuite{mode, suite}));
    }
  }
  EXPECT_EQ(parse_mode("off"), Mode::kOff);
  EXPECT_FALSE(parse_mode("sealed ") || parse_suite("auto") || parse_suite(""));
  for (const uint8_t bad : {0x00, 0x10, 0x01, 0x13, 0x41, 0xff})
    EXPECT_FALSE(unpack(bad)) << int{bad};
  EXPECT_TRUE(fast_suites() & suite_bit(Suite::kChaCha20Poly1305));
}

}  // namespace
}  // namespace mcast::crypto
