// Tests CRC-32C against published vectors, against a bit-by-bit model, and chained over every
// split.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/rng.h"

namespace mcast {
namespace {

ConstBytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The definition: reflected polynomial 0x82f63b78, one bit at a time.
uint32_t model(ConstBytes data) {
  uint32_t crc = 0xffffffff;
  for (const std::byte b : data) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> data(size);
  for (std::byte& b : data) b = static_cast<std::byte>(rng.next());
  return data;
}

TEST(Crc32c, AgreesWithPublishedVectors) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  // RFC 3720 appendix B.4.
  std::vector<std::byte> data(32, std::byte{0});
  EXPECT_EQ(crc32c(data), 0x8a9136aau);
  data.assign(32, std::byte{0xff});
  EXPECT_EQ(crc32c(data), 0x62a8ab43u);
  for (size_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(data), 0x46dd794eu);
  for (size_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(data), 0x113fdb5cu);
}

TEST(Crc32c, NothingLeavesTheSeed) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c({}, 0x12345678), 0x12345678u);
}

TEST(Crc32c, EveryLengthAndAlignmentAgreesWithTheDefinition) {
  const auto data = random_bytes(700, 1);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t length = 0; length + offset <= data.size(); length += 1 + length / 40) {
      const ConstBytes part = ConstBytes(data).subspan(offset, length);
      ASSERT_EQ(crc32c(part), model(part)) << offset << " " << length;
    }
  }
  const auto large = random_bytes(8896, 2);
  EXPECT_EQ(crc32c(large), model(large));
}

TEST(Crc32c, ChainsOverEverySplit) {
  const auto data = random_bytes(300, 3);
  const ConstBytes all(data);
  const uint32_t whole = crc32c(all);
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    ASSERT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), whole) << cut;
  }
}

TEST(Crc32c, OneFlippedBitIsSeenAnywhere) {
  auto data = random_bytes(64, 4);
  const uint32_t before = crc32c(data);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    data[bit / 8] ^= mask;
    ASSERT_NE(crc32c(data), before) << bit;
    data[bit / 8] ^= mask;
  }
}

}  // namespace
}  // namespace mcast
