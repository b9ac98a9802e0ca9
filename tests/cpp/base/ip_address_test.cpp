// IP addresses, endpoints and networks as people write them, and what is none of these.
#include "base/ip_address.h"

#include <gtest/gtest.h>

#include "base/config.h"

namespace mcast {
namespace {

TEST(IpNetwork, ListsAreRead) {
  const auto all = parse_networks(" 10.1.0.0/24, 10.2.0.7 ,0.0.0.0/0", 8);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0], (IpNetwork{IpAddress::v4(0x0a010000), 24}));
  EXPECT_EQ((*all)[1], (IpNetwork{IpAddress::v4(0x0a020007), 32}));
  EXPECT_EQ((*all)[0].text(), "10.1.0.0/24");
  EXPECT_EQ((*all)[1].text(), "10.2.0.7");
  EXPECT_TRUE((*all)[0].contains(IpAddress::v4(0x0a0100ff)));
  EXPECT_FALSE((*all)[0].contains(IpAddress::v4(0x0a010100)));
  EXPECT_TRUE((*all)[2].contains(IpAddress::v4(0xffffffff)));
  EXPECT_TRUE(parse_networks("", 8)->empty());
}

TEST(IpNetwork, NetworksOfIPv6AreRead) {
  const auto all = parse_networks("fd00:1::/36,::/0,2001:db8::9,10.0.0.0/8", 8);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_EQ((*all)[0].text(), "fd00:1::/36");
  EXPECT_EQ((*all)[1].text(), "::/0");
  EXPECT_EQ((*all)[2].text(), "2001:db8::9");
  const auto contains = [&all](size_t i, const char* text) {
    return (*all)[i].contains(*IpAddress::parse(text));
  };
  EXPECT_TRUE(contains(0, "fd00:1:fff::1"));
  EXPECT_FALSE(contains(0, "fd00:1:1000::1"));
  EXPECT_TRUE(contains(1, "fd00::1"));
  EXPECT_FALSE(contains(1, "10.0.0.1")) << "all of IPv6, not IPv4";
  EXPECT_TRUE(contains(2, "2001:db8::9"));
  EXPECT_FALSE(contains(2, "2001:db8::8"));
  EXPECT_FALSE(contains(3, "fd00::1"));
  EXPECT_FALSE((*all)[1].contains(IpAddress())) << "no address";
}

TEST(IpAddress, TextsRoundTrip) {
  for (const char* text : {"10.0.0.9", "0.0.0.0", "127.0.0.1", "::1", "fd00::9", "fe80::1:2",
                           "2001:db8:1:2:3:4:5:6"}) {
    const auto address = IpAddress::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->text(), text);
    const Endpoint endpoint{*address, 4711};
    EXPECT_EQ(Endpoint::parse(endpoint.text()), endpoint) << endpoint.text();
  }
  EXPECT_EQ(IpAddress::parse("FD00:0:0::9")->text(), "fd00::9");
  EXPECT_EQ(IpAddress::parse("::ffff:10.0.0.9"), IpAddress::parse("10.0.0.9"));
  for (const char* text : {"", "::", "10.0.0", "10.0.0.256", "fd00::1%eth0", "[fd00::1]", "host",
                           "fd00::1::2", "1:2:3:4:5:6:7:8:9"}) {
    EXPECT_FALSE(IpAddress::parse(text)) << text;
  }
  for (const char* text : {"fd00::1:80", "[fd00::1]", "[10.0.0.1]:80", "10.0.0.1", "10.0.0.1:0",
                           "[fd00::1]:65536", "[]:80"}) {
    EXPECT_FALSE(Endpoint::parse(text)) << text;
  }
}

TEST(IpAddress, KindsAreToldApart) {
  const auto at = [](const char* text) { return *IpAddress::parse(text); };
  EXPECT_FALSE(IpAddress().known());
  EXPECT_FALSE(IpAddress().is_v4());
  EXPECT_FALSE(IpAddress().is_v6());
  EXPECT_TRUE(at("10.0.0.9").is_v4());
  EXPECT_TRUE(at("fd00::9").is_v6());
  EXPECT_EQ(at("10.0.0.9").v4(), 0x0a000009u);
  EXPECT_TRUE(at("127.4.5.6").loopback());
  EXPECT_TRUE(at("::1").loopback());
  EXPECT_FALSE(at("fd00::1").loopback());
  EXPECT_TRUE(at("169.254.1.1").link_local());
  EXPECT_TRUE(at("febf::1").link_local());
  EXPECT_FALSE(at("fec0::1").link_local());
  EXPECT_LT(at("255.0.0.1"), at("2001::1")) << "the network choice prefers lower addresses";
  EXPECT_EQ(at("10.0.0.9").header_bytes(), 20u);
  EXPECT_EQ(at("fd00::9").header_bytes(), 40u);
}

TEST(IpNetwork, MistakesAreNamed) {
  for (const auto& [text, why] : {std::pair{"host1", "is not an IPv4 or IPv6 network"},
                                  {"10.1.0", "is not an IPv4 or IPv6 network"},
                                  {"10.1.0.256", "is not an IPv4 or IPv6 network"},
                                  {"10.1.0.1.2", "is not an IPv4 or IPv6 network"},
                                  {"10.1.0.0/33", "has no prefix length from 0 to 32"},
                                  {"10.1.0.0/", "has no prefix length from 0 to 32"},
                                  {"10.1.0.9/24", "has bits set beyond its prefix length"},
                                  {"10.1.0.1,", "is not an IPv4 or IPv6 network"},
                                  {"fd00::1%eth0", "is not an IPv4 or IPv6 network"},
                                  {"fd00:::1", "is not an IPv4 or IPv6 network"},
                                  {"[fd00::]/64", "is not an IPv4 or IPv6 network"},
                                  {"fd00::/129", "has no prefix length from 0 to 128"},
                                  {"fd00::9/64", "has bits set beyond its prefix length"},
                                  {"1.1.1.1,2.2.2.2,3.3.3.3", "more than 2 networks"}}) {
    const auto none = parse_networks(text, 2);
    ASSERT_FALSE(none.ok()) << text;
    EXPECT_NE(none.status().message().find(why), std::string::npos)
        << text << ": " << none.status().message();
  }
}

TEST(IpNetwork, TheSettingIsNormalizedAndItsMistakeExplained) {
  const auto good = Config::resolve({{"allow", " 10.1.0.0/24 , 10.2.0.7/32"}}, {});
  ASSERT_TRUE(good.ok()) << good.status().to_string();
  EXPECT_EQ(good->allow, "10.1.0.0/24,10.2.0.7");
  EXPECT_TRUE(good->watches_sources()) << "monitor=auto with allow";
  const auto bad = Config::resolve({}, {{"MCAST_ALLOW", "10.1.0.9/24"}});
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("bits set beyond its prefix length"), std::string::npos);
  EXPECT_NE(bad.status().message().find("environment variable MCAST_ALLOW"), std::string::npos);
  EXPECT_FALSE(Config::resolve({}, {})->watches_sources());
  EXPECT_TRUE(Config::resolve({{"monitor", "on"}}, {})->watches_sources());
  EXPECT_FALSE(Config::resolve({{"monitor", "off"}, {"allow", "10.0.0.1"}}, {})->watches_sources());
}

}  // namespace
}  // namespace mcast
