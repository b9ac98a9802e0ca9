// Interface patterns and the choice among invented interfaces; one test uses the machine's.
#include "transport/udp/netif.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace mcast {
namespace {

using ::testing::HasSubstr;

Interface make(const std::string& name, const char* address, bool multicast = true) {
  Interface i;
  i.name = name;
  i.mtu = 1500;
  i.up = true;
  i.multicast = multicast;
  if (address != nullptr) i.address = *IpAddress::parse(address);
  return i;
}

std::vector<Interface> host() {
  std::vector<Interface> all = {make("lo", "127.0.0.1", false), make("docker0", "172.17.0.1"),
                                make("eth0", "10.0.0.1"),       make("eth10", "10.0.0.10"),
                                make("ib0", "10.1.0.1"),        make("wlan0", nullptr)};
  for (size_t i = 0; i < all.size(); ++i) all[i].index = static_cast<int>(i) + 1;
  all[0].loopback = true;
  return all;
}

std::string chosen(const std::vector<Interface>& all, std::string_view pattern) {
  auto result = choose_interfaces(all, pattern);
  return result.ok() ? result->stripe.front().name : "error: " + result.status().message();
}

TEST(InterfacePattern, ReadsTheGrammar) {
  const auto check = [](std::string_view text, bool exclude, bool exact,
                        std::vector<std::string> names) {
    auto p = InterfacePattern::parse(text);
    ASSERT_TRUE(p.ok()) << text;
    EXPECT_EQ(p->exclude, exclude) << text;
    EXPECT_EQ(p->exact, exact) << text;
    EXPECT_EQ(p->names, names) << text;
  };
  check("", false, false, {});
  check("eth", false, false, {"eth"});
  check("eth,ib", false, false, {"eth", "ib"});
  check("=eth0,eth1", false, true, {"eth0", "eth1"});
  check("^docker,virbr", true, false, {"docker", "virbr"});
  check("^=eth0", true, true, {"eth0"});
  check("=eth0+eth1,ib0", false, true, {"eth0+eth1", "ib0"});
  for (const char* bad : {"=", "^", "^=", "eth,,ib", ",eth", "eth,", "eth0+eth1", "^=eth0+eth1",
                          "=eth0+", "=+eth0", "=eth0+eth0", "=ib0,eth0++eth1"}) {
    auto p = InterfacePattern::parse(bad);
    ASSERT_FALSE(p.ok()) << bad;
    EXPECT_EQ(p.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(p.status().message(), HasSubstr(bad));
  }
}

TEST(InterfacePattern, MatchesPrefixesOrWholeNames) {
  EXPECT_EQ(InterfacePattern::parse("ib,eth")->match("eth10"), 1);
  EXPECT_EQ(InterfacePattern::parse("eth10")->match("eth1"), -1);
  EXPECT_EQ(InterfacePattern::parse("=eth1")->match("eth10"), -1);
  EXPECT_EQ(InterfacePattern::parse("=eth1,eth10")->match("eth10"), 1);
}

TEST(ChooseInterface, TakesAddressesAndNetworks) {
  auto all = host();
  EXPECT_EQ(chosen(all, "10.1.0.0/16"), "ib0");
  EXPECT_EQ(chosen(all, "10.0.0.10"), "eth10");
  EXPECT_EQ(chosen(all, "192.168.0.0/16,10.0.0.0/24"), "eth0");
  EXPECT_EQ(chosen(all, "=10.1.0.0/16"), "ib0");
  EXPECT_EQ(chosen(all, "^10.0.0.0/24"), "ib0");
  EXPECT_THAT(chosen(all, "192.168.0.0/16"), HasSubstr("matches no usable interface"));
  // Its second address.
  const IpAddress second = *IpAddress::parse("192.168.7.1");
  all[2].addresses = {all[2].address, second, *IpAddress::parse("fd00:1::7")};
  auto result = choose_interfaces(all, "192.168.0.0/16");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stripe.front().name, "eth0");
  EXPECT_EQ(result->stripe.front().address, second);
  for (const char* pattern : {"fd00:1::/64", "=fd00:1::7", "fd00:2::/64,fd00:1::/64"}) {
    result = choose_interfaces(all, pattern);
    ASSERT_TRUE(result.ok()) << pattern;
    EXPECT_EQ(result->stripe.front().name, "eth0") << pattern;
    EXPECT_EQ(result->stripe.front().address.text(), "fd00:1::7") << pattern;
  }
  EXPECT_EQ(chosen(all, "^fd00:1::/64"), "eth10");
}

TEST(ChooseInterface, LinkLocalAddressesOfIPv6AreNotUsed) {
  std::vector<Interface> all = {make("eth0", nullptr)};
  all[0].link_local = true;
  EXPECT_THAT(chosen(all, ""),
              HasSubstr("eth0 (only a link-local IPv6 address; it needs a global"));
}

TEST(ChooseInterface, StripeHasOneIPVersion) {
  auto all = host();
  all[4].address = *IpAddress::parse("fd00::1");
  EXPECT_THAT(chosen(all, "=eth0+ib0"), HasSubstr("stripes over 10.0.0.1 and fd00::1, of which"));
  all[2].address = *IpAddress::parse("fd00::2");
  EXPECT_EQ(chosen(all, "=eth0+ib0"), "eth0");
}

TEST(ChooseInterface, FollowsThePattern) {
  const auto all = host();
  EXPECT_EQ(chosen(all, "eth"), "eth0");
  EXPECT_EQ(chosen(all, "ib,eth"), "ib0");
  EXPECT_EQ(chosen(all, "xx,eth1"), "eth10");
  EXPECT_EQ(chosen(all, "=eth10"), "eth10");
  EXPECT_EQ(chosen(all, "lo"), "lo");
  EXPECT_EQ(chosen(all, "=docker0"), "docker0");
  EXPECT_EQ(chosen(all, "^eth0"), "eth10");
  EXPECT_EQ(chosen(all, "^eth"), "ib0");
  EXPECT_EQ(chosen(all, "^=eth0"), "eth10");
}

TEST(ChooseInterface, GivesEachLaneItsEntryOfAnExactList) {
  const auto all = host();
  const auto lane = [&](std::string_view pattern, size_t index) {
    auto result = choose_interfaces(all, pattern, index);
    if (!result.ok()) return "error: " + result.status().message();
    std::string names;
    for (const Interface& i : result->stripe) names += (names.empty() ? "" : " ") + i.name;
    return names;
  };
  EXPECT_EQ(lane("=eth0,ib0", 0), "eth0");
  EXPECT_EQ(lane("=eth0,ib0", 1), "ib0");
  EXPECT_EQ(lane("=eth0", 1), "eth0");
  EXPECT_EQ(lane("=wlan0,eth0", 0), "eth0");  // the first has no address
  EXPECT_EQ(lane("eth,ib", 1), "eth0");       // prefixes are alternatives
  EXPECT_EQ(lane("=ib0+eth0", 0), "ib0 eth0");
  EXPECT_EQ(lane("=ib0+eth0", 1), "ib0 eth0");
  EXPECT_EQ(lane("=ib0+eth0,eth10", 1), "eth10");
  EXPECT_EQ(lane("=eth10,ib0+eth0", 1), "ib0 eth0");
  EXPECT_THAT(lane("=eth0+wlan0", 0),
              HasSubstr("stripes over wlan0, which does not exist, is down"));
  EXPECT_THAT(lane("=eth0,eth0+mlx5", 0), HasSubstr("stripes over mlx5"));
  EXPECT_EQ(chosen(all, "=ib0+eth0"), "ib0");
}

TEST(ChooseInterface, PrefersTheDefaultRouteThenMulticastThenLoopback) {
  auto all = host();
  EXPECT_EQ(chosen(all, ""), "eth0");
  all[4].default_route = true;
  EXPECT_EQ(chosen(all, ""), "ib0");
  EXPECT_EQ(chosen(all, "^ib"), "eth0");
  all[4].multicast = false;  // last resort: default route without multicast
  EXPECT_EQ(chosen(all, ""), "eth0");
  all[4].up = false;
  for (size_t i = 2; i < all.size(); ++i) all[i].up = false;
  EXPECT_EQ(chosen(all, ""), "lo");
}

TEST(ChooseInterface, PrefersTheFastestWhereTheSpeedOfTheRouteIsKnown) {
  auto all = host();
  all[2].default_route = true;  // eth0
  all[4].speed = 25000;         // ib0
  EXPECT_EQ(chosen(all, ""), "eth0") << "nobody knows whether it is slower";
  all[2].speed = 1000;
  EXPECT_EQ(chosen(all, ""), "ib0");
  EXPECT_EQ(chosen(all, "^ib"), "eth0");
  EXPECT_EQ(choose_interfaces(all, "")->reason, "it is the fastest (25000 Mbit/s)");
  all[1].speed = 50000;
  EXPECT_EQ(chosen(all, ""), "ib0") << "docker0 leads to no other host";
  all[4].speed = 1000;
  EXPECT_EQ(chosen(all, ""), "eth0") << "equally fast";
  // The route to the store takes precedence over the default route.
  all[1].store_route = true;
  EXPECT_EQ(chosen(all, ""), "docker0");
}

TEST(ChooseInterface, SaysWhatExistsWhenNothingMatches) {
  auto all = host();
  auto none = choose_interfaces(all, "=mlx5");
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(test::is_error(none.status(), ErrorId::no_interface, {{"pattern", "=mlx5"}}));
  EXPECT_THAT(none.status().message(), HasSubstr("eth0 10.0.0.1"));
  EXPECT_THAT(none.status().message(), HasSubstr("wlan0 (no IP address)"));
  all[4].up = false;
  EXPECT_THAT(chosen(all, "ib"), HasSubstr("down"));
  EXPECT_THAT(chosen(all, "ib"), HasSubstr("ib0 10.1.0.1 (down)"));
  EXPECT_THAT(chosen({}, ""), HasSubstr("none"));
}

TEST(ListInterfaces, FindsLoopback) {
  auto all = list_interfaces();
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  auto loopback = find_loopback(*all);
  ASSERT_TRUE(loopback.ok()) << loopback.status().to_string();
  EXPECT_EQ(loopback->name, "lo");
  EXPECT_EQ(loopback->address.text(), "127.0.0.1");
  EXPECT_EQ(loopback->first_address(true).text(), "::1");
  EXPECT_GT(loopback->index, 0);
  EXPECT_GE(loopback->mtu, 1500u);
}

}  // namespace
}  // namespace mcast
