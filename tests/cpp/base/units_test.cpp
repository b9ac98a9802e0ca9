// Lists, sizes and rates: the spellings that people use are accepted, and all others are refused.
#include "base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mcast {
namespace {

TEST(Units, PartsBetweenCommas) {
  using testing::ElementsAre;
  EXPECT_THAT(split_at_commas("a"), ElementsAre("a"));
  EXPECT_THAT(split_at_commas("a,b c,d"), ElementsAre("a", "b c", "d"));
  EXPECT_THAT(split_at_commas(""), ElementsAre(""));
  EXPECT_THAT(split_at_commas(",a,,"), ElementsAre("", "a", "", ""));
}

TEST(Units, SizesTakeABinarySuffixOrNone) {
  const auto size = [](std::string_view text) {
    uint64_t value = 7;
    return parse_size(text, value) ? value : uint64_t{7};
  };
  EXPECT_EQ(size("0"), 0u);
  EXPECT_EQ(size("32768"), 32768u);
  EXPECT_EQ(size("32K"), 32768u);
  EXPECT_EQ(size("32 k"), 32768u);
  EXPECT_EQ(size("512M"), 512u << 20);
  EXPECT_EQ(size("3G"), uint64_t{3} << 30);
  for (const char* wrong : {"", "K", "-1", "1.5M", "1T", "1KB", "20000000000G", "M1"}) {
    EXPECT_EQ(size(wrong), 7u) << wrong;
  }
}

TEST(Units, SizesAreWrittenAsTheyAreRead) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1024},
                               uint64_t{512} << 20, uint64_t{3} << 30, uint64_t{4} << 40}) {
    uint64_t back = 7;
    EXPECT_TRUE(parse_size(size_text(bytes), back));
    EXPECT_EQ(back, bytes);
  }
  EXPECT_EQ(size_text(512u << 20), "512M");
  EXPECT_EQ(size_text(1536), "1536");
}

TEST(Units, DecimalsAreWrittenAsTheyAreRead) {
  double value = 7;
  EXPECT_TRUE(read_decimal("2.5", value) && value == 2.5);
  EXPECT_TRUE(read_decimal("1e3", value) && value == 1000);
  for (const char* wrong : {"", "2,5", "2.5 ", "x"})
    EXPECT_FALSE(read_decimal(wrong, value)) << wrong;
  EXPECT_EQ(decimal_text(2.5), "2.5");
  EXPECT_EQ(decimal_text(2.5, 3), "2.500");
  EXPECT_EQ(decimal_text(1.0 / 3, 1), "0.3");
  EXPECT_TRUE(read_decimal(decimal_text(0.1), value) && value == 0.1);
}

TEST(Units, RatesAreReadInBitsPerSecondOrRefused) {
  const auto rate = [](std::string_view text) {
    uint64_t value = 7;
    return parse_rate(text, value) ? value : uint64_t{7};
  };
  EXPECT_EQ(rate("100gbit"), 100'000'000'000u);
  EXPECT_EQ(rate("2.5Gbit"), 2'500'000'000u);
  EXPECT_EQ(rate("300 mbit"), 300'000'000u);
  EXPECT_EQ(rate("800kbit"), 800'000u);
  EXPECT_EQ(rate("1000"), 1000u);
  for (const char* wrong : {"", "gbit", "0", "-1gbit", "nan", "1e30", "1gib", "1 gbit/s"}) {
    EXPECT_EQ(rate(wrong), 7u) << wrong;
  }
}

}  // namespace
}  // namespace mcast
