// Texts that are networks, and texts that are not.
#include "base/ipv4_network.h"

#include <gtest/gtest.h>

#include "base/config.h"

namespace mcast {
namespace {

TEST(Ipv4Network, ListsAreRead) {
  const auto all = parse_networks(" 10.1.0.0/24, 10.2.0.7 ,0.0.0.0/0", 8);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0], (Ipv4Network{0x0a010000, 24}));
  EXPECT_EQ((*all)[1], (Ipv4Network{0x0a020007, 32}));
  EXPECT_EQ((*all)[0].text(), "10.1.0.0/24");
  EXPECT_EQ((*all)[1].text(), "10.2.0.7");
  EXPECT_TRUE((*all)[0].contains(0x0a0100ff));
  EXPECT_FALSE((*all)[0].contains(0x0a010100));
  EXPECT_TRUE((*all)[2].contains(0xffffffff));
  EXPECT_TRUE(parse_networks("", 8)->empty());
}

TEST(Ipv4Network, MistakesAreNamed) {
  for (const auto& [text, why] : {std::pair{"host1", "is no IPv4 network"},
                                  {"10.1.0", "is no IPv4 network"},
                                  {"10.1.0.256", "is no IPv4 network"},
                                  {"10.1.0.1.2", "is no IPv4 network"},
                                  {"10.1.0.0/33", "has no prefix from 0 to 32"},
                                  {"10.1.0.0/", "has no prefix from 0 to 32"},
                                  {"10.1.0.9/24", "has bits beyond its prefix"},
                                  {"10.1.0.1,", "is no IPv4 network"},
                                  {"1.1.1.1,2.2.2.2,3.3.3.3", "more than 2 networks"}}) {
    const auto none = parse_networks(text, 2);
    ASSERT_FALSE(none.ok()) << text;
    EXPECT_NE(none.status().message().find(why), std::string::npos)
        << text << ": " << none.status().message();
  }
}

TEST(Ipv4Network, TheSettingIsNormalizedAndItsMistakeExplained) {
  const auto good = Config::resolve({{"allow", " 10.1.0.0/24 , 10.2.0.7/32"}}, {});
  ASSERT_TRUE(good.ok()) << good.status().to_string();
  EXPECT_EQ(good->allow, "10.1.0.0/24,10.2.0.7");
  EXPECT_TRUE(good->watches_sources()) << "monitor=auto with allow";
  const auto bad = Config::resolve({}, {{"MCAST_ALLOW", "10.1.0.9/24"}});
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("bits beyond its prefix"), std::string::npos);
  EXPECT_NE(bad.status().message().find("environment variable MCAST_ALLOW"), std::string::npos);
  EXPECT_FALSE(Config::resolve({}, {})->watches_sources());
  EXPECT_TRUE(Config::resolve({{"monitor", "on"}}, {})->watches_sources());
  EXPECT_FALSE(Config::resolve({{"monitor", "off"}, {"allow", "10.0.0.1"}}, {})->watches_sources());
}

}  // namespace
}  // namespace mcast
