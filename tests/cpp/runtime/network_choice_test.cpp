// The network on which ranks with several interfaces agree: records as ranks publish them, and a
// network with only the reachability that the test defines.
#include "runtime/network_choice.h"

#include <gtest/gtest.h>

#include <set>

#include "transport/udp/own_addresses.h"

namespace mcast {
namespace {

constexpr const char* kSlow = "10.0.0.0/16";
constexpr const char* kFast = "10.1.0.0/16";

RankRecord rank_on(const std::string& host, const std::string& external,
                   const std::string& addresses) {
  RankRecord r;
  r.host = host;
  r.external = {1, external, 4000};
  r.place.addresses = addresses;
  return r;
}

std::string slow(int host, const std::string& more = "@1000r") {
  return "10.0.0." + std::to_string(host) + "/16" + more;
}
std::string fast(int host, const std::string& more = "@25000") {
  return "10.1.0." + std::to_string(host) + "/16" + more;
}

// Two hosts; each lists its slow interface first.
std::vector<RankRecord> two(const std::string& a, const std::string& b) {
  return {rank_on("a", "10.0.0.1", a), rank_on("b", "10.0.0.2", b)};
}

std::string chosen(const std::vector<RankRecord>& records) {
  return choose_network(records,
                        [](const OwnAddress&, const std::vector<Endpoint>&) { return true; });
}

TEST(NetworkChoice, AddressesSurviveTheStore) {
  const std::string text = "10.0.0.1/16@1000r,10.1.0.1/24@0n,192.168.7.1/32@25000nr";
  const auto addresses = parse_addresses(text);
  ASSERT_EQ(addresses.size(), 3u);
  EXPECT_EQ(addresses_text(addresses), text);
  EXPECT_EQ(addresses[1].network().text(), "10.1.0.0/24");
  EXPECT_TRUE(addresses[1].near);
  EXPECT_FALSE(addresses[1].route);
  for (const char* bad : {"10.0.0.1", "10.0.0.1/33@1", "10.0.0/8@1", "10.0.0.1/8", "@/,", "/@",
                          "10.0.0.1/8@x", "10.0.0.1/8@1rn", "10.0.0.0/8/8@1"}) {
    EXPECT_TRUE(parse_addresses(bad).empty()) << bad;
  }
}

TEST(NetworkChoice, FastestCommonNetworkWins) {
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(1), slow(2) + "," + fast(2))), kFast);
  // The slowest rank's link counts.
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(1), slow(2) + "," + fast(2, "@100"))), "");
  // The choice is empty if all ranks use it already.
  auto records = two(slow(1) + "," + fast(1), slow(2) + "," + fast(2));
  records[0].external.host = "10.1.0.1";
  EXPECT_EQ(chosen(records), kFast) << "one of them does not";
  records[1].external.host = "10.1.0.2";
  EXPECT_EQ(chosen(records), "");
}

TEST(NetworkChoice, NetworkOfOneRankAloneDoesNotCount) {
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(1), slow(2))), "");
  auto records = two(slow(1) + "," + fast(1), slow(2));
  records[0].external.host = "10.1.0.1";
  EXPECT_EQ(chosen(records), kSlow);
  // The same address range with another prefix is not the same network.
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(1), slow(2) + ",10.1.0.2/24@25000")), "");
}

TEST(NetworkChoice, NetworkWithOneAddressOnTwoHostsDoesNotCount) {
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(9), slow(2) + "," + fast(9))), "");
  // Ranks of one host share its address.
  auto records = two(slow(1) + "," + fast(1), slow(2) + "," + fast(2));
  records.push_back(records[1]);
  EXPECT_EQ(chosen(records), kFast);
}

TEST(NetworkChoice, SpeedsCountOnlyWhereThatOfTheRouteIsKnown) {
  EXPECT_EQ(chosen(two(slow(1, "@0r") + "," + fast(1), slow(2, "@0r") + "," + fast(2))), "");
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(1, "@0"), slow(2) + "," + fast(2, "@0"))), "");
}

TEST(NetworkChoice, NearestOfEqualNetworksWins) {
  const auto equal = [](const char* at_a, const char* at_b) {
    return two(slow(1, "@25000r") + "," + fast(1, at_a), slow(2, "@25000r") + "," + fast(2, at_b));
  };
  EXPECT_EQ(chosen(equal("@25000", "@25000")), "") << "the way to the store";
  EXPECT_EQ(chosen(equal("@25000n", "@25000n")), kFast);
  // Within the network, each rank uses its own nearest interface.
  const auto own = parse_addresses("10.1.0.1/16@25000,10.1.0.2/16@25000n,10.1.0.3/16@100n");
  EXPECT_EQ(best_address(own, kFast)->address.text(), "10.1.0.2");
}

TEST(NetworkChoice, UnreachableNetworkIsSkipped) {
  auto records = two(slow(1) + "," + fast(1), slow(2) + "," + fast(2));
  records.push_back(rank_on("b", "10.0.0.2", slow(2) + "," + fast(2)));
  records.push_back(rank_on("a", "10.0.0.1", slow(1) + "," + fast(1)));
  std::set<IpAddress> asked;
  EXPECT_EQ(choose_network(records,
                           [&](const OwnAddress& own, const std::vector<Endpoint>& far) {
                             EXPECT_EQ(own.address.text(), "10.1.0.1");
                             for (const Endpoint& one : far) asked.insert(one.address);
                             return false;
                           }),
            "");
  // Each other host once, but not on the network to the store, through which the ranks have
  // connected.
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked.begin()->text(), "10.1.0.2");
}

TEST(NetworkChoice, WithoutACommonNetworkEachTakesItsWayToTheStore) {
  auto records = two(slow(1) + "," + fast(1), "10.2.0.2/16@1000r,10.3.0.2/16@25000");
  records[0].external.host = "10.1.0.1";
  records[1].external.host = "10.3.0.2";
  EXPECT_EQ(chosen(records), kByRoute);
  records[0].external.host = "10.0.0.1";
  records[1].external.host = "10.2.0.2";
  EXPECT_EQ(chosen(records), "");
}

TEST(NetworkChoice, NothingIsChosenOnOneHostOrAmongOneInterfaceEach) {
  auto one_host = two(slow(1) + "," + fast(1), slow(2) + "," + fast(2));
  one_host[1].host = "a";
  EXPECT_EQ(chosen(one_host), "");
  EXPECT_EQ(chosen(two(slow(1), slow(2))), "");
  EXPECT_EQ(chosen(two(slow(1) + "," + fast(1), "")), "") << "a rank that says nothing of it";
}

TEST(NetworkChoice, GuessIsTheLastNetworkThenTheFastest) {
  const auto own = parse_addresses(slow(1) + "," + fast(1));
  EXPECT_EQ(first_guess(own, "")->network().text(), kFast);
  EXPECT_EQ(first_guess(own, kSlow)->network().text(), kSlow);
  EXPECT_EQ(first_guess(own, kByRoute)->network().text(), kSlow);
  EXPECT_EQ(first_guess(own, "10.7.0.0/16")->network().text(), kFast) << "it is gone";
  EXPECT_EQ(first_guess(parse_addresses(slow(1, "@0r") + "," + fast(1)), "")->network().text(),
            kSlow);
  EXPECT_EQ(first_guess({}, ""), nullptr);
}

TEST(OwnAddresses, CpuListsAndNodes) {
  EXPECT_EQ(parse_cpu_list("0-2,8"), (std::vector<int>{0, 1, 2, 8}));
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_TRUE(parse_cpu_list("3-x").empty());
  const std::vector<std::vector<int>> nodes = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  EXPECT_TRUE(near_to(1, {4, 5}, nodes));
  EXPECT_FALSE(near_to(0, {4, 5}, nodes));
  EXPECT_FALSE(near_to(-1, {4, 5}, nodes)) << "a device of no node";
  EXPECT_FALSE(near_to(7, {4, 5}, nodes));
  EXPECT_FALSE(near_to(0, {0, 1, 2, 3, 4, 5, 6, 7}, nodes)) << "it may run everywhere";
}

// Hosts with an address of each version on one interface.
std::string both(int host, const char* v4 = "@1000r", const char* v6 = "@1000") {
  const std::string end = std::to_string(host);
  return "10.0.0." + end + "/16" + v4 + ",fd00::" + end + "/64" + v6;
}

TEST(NetworkChoice, AddressesOfIPv6SurviveTheStore) {
  const std::string text = "10.0.0.1/16@1000r,fd00:1::7/64@1000,2001:db8::1/128@0nr";
  const auto addresses = parse_addresses(text);
  ASSERT_EQ(addresses.size(), 3u);
  EXPECT_EQ(addresses_text(addresses), text);
  EXPECT_EQ(addresses[1].network().text(), "fd00:1::/64");
  for (const char* bad : {"fd00::1/129@1", "::/0@1", "[fd00::1]/64@1", "fd00::1/64"}) {
    EXPECT_TRUE(parse_addresses(bad).empty()) << bad;
  }
}

TEST(NetworkChoice, IPv4IsPreferredUnlessTheStoreIsReachedOverIPv6) {
  EXPECT_EQ(chosen(two(both(1), both(2))), "") << "they use IPv4 already";
  const auto v6_store = two(both(1, "@1000", "@1000r"), both(2, "@1000", "@1000r"));
  EXPECT_EQ(chosen(v6_store), "fd00::/64");
  EXPECT_EQ(first_guess(parse_addresses(both(1)), "")->address.text(), "10.0.0.1");
  EXPECT_EQ(first_guess(parse_addresses(both(1, "@1000", "@1000r")), "")->address.text(),
            "fd00::1");
  EXPECT_EQ(first_guess(parse_addresses(both(1, "@1000r", "@1000r")), "")->address.text(),
            "10.0.0.1")
      << "the store's name has addresses of both versions";
}

TEST(NetworkChoice, HostsWithBothVersionsFollowThoseWithIPv6Only) {
  auto records = two(both(1), "fd00::2/64@1000");
  records[1].external.host = "fd00::2";
  EXPECT_EQ(chosen(records), "fd00::/64");
  // In another network of IPv6 each.
  records = two(both(1), "fd00:7::2/64@1000r");
  records[1].external.host = "fd00:7::2";
  EXPECT_EQ(chosen(records), kByRoute6);
  EXPECT_EQ(best_address(parse_addresses(both(1)), kByRoute6)->address.text(), "fd00::1");
  records[0].external.host = "fd00::1";
  EXPECT_EQ(chosen(records), "");
  // Nothing in common.
  records = two(slow(1) + "," + fast(1), "fd00:7::2/64@1000r,fd00:8::2/64@1000");
  records[1].external.host = "fd00:7::2";
  EXPECT_EQ(chosen(records), "");
}

Interface interface_of(const char* name, uint32_t address, uint32_t prefix, uint32_t speed) {
  Interface i;
  i.name = name;
  i.address = IpAddress::v4(address);
  i.addresses = {i.address};
  i.prefixes = {prefix};
  i.speed = speed;
  i.up = i.multicast = true;
  return i;
}

TEST(OwnAddresses, LeavesOutWhatNoOtherHostReaches) {
  std::vector<Interface> all = {
      interface_of("lo", 0x7f000001, 8, 0), interface_of("eth0", 0x0a000001, 16, 1000),
      interface_of("docker0", 0xac110001, 16, 10000), interface_of("usb0", 0xa9fe0001, 16, 10000),
      interface_of("eth1", 0x0a010001, 24, 25000)};
  all[0].loopback = true;
  all[1].default_route = true;
  const auto text = [&](const char* pattern) {
    return addresses_text(own_addresses(all, pattern, ""));
  };
  EXPECT_EQ(text(""), "10.0.0.1/16@1000r,10.1.0.1/24@25000");
  EXPECT_EQ(text("^eth1"), "10.0.0.1/16@1000r");
  EXPECT_EQ(text("eth1"), "10.1.0.1/24@25000") << "named, so nothing is left to choose";
  EXPECT_EQ(text("=nosuch"), "");
  all[4].up = false;
  EXPECT_EQ(text(""), "10.0.0.1/16@1000r");
  // A second address is another choice.
  all[1].addresses.push_back(IpAddress::v4(0xc0a80101));
  all[1].prefixes.push_back(24);
  EXPECT_EQ(text(""), "10.0.0.1/16@1000r,192.168.1.1/24@1000");
  // A name leaves the IP version open, an address does not.
  all[1].addresses.push_back(*IpAddress::parse("fd00::1"));
  all[1].prefixes.push_back(64);
  EXPECT_EQ(text("eth0"), "10.0.0.1/16@1000r,fd00::1/64@1000");
  EXPECT_EQ(text("192.168.1.0/24"), "192.168.1.1/24@1000r");
  EXPECT_EQ(text("fd00::/64"), "fd00::1/64@1000r");
}

}  // namespace
}  // namespace mcast
