#include "base/net_address.h"

#include <gtest/gtest.h>

namespace mcast {
namespace {

TEST(NetAddress, IsReadAsItIsWritten) {
  for (const char* text : {"10.0.0.9:7117", "agg-1.example:1", "[fd00::9]:65535"}) {
    const auto parsed = parse_net_address(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed->text(), text);
  }
  EXPECT_EQ(parse_net_address("[::1]:5")->host, "::1");
}

TEST(NetAddress, AnythingElseIsRefusedWithTheReason) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "has no port: it must be host:port"},
      {"host", "has no port: it must be host:port"},
      {":7117", "has no host"},
      {"[]:7117", "has no host"},
      {"::1:7117", "has no host"},
      {"a b:7117", "has no host"},
      {"host:0", "no port from 1 to 65535"},
      {"host:65536", "no port from 1 to 65535"},
      {"host:", "no port from 1 to 65535"},
      {"host:7x", "no port from 1 to 65535"},
  };
  for (const auto& [text, why] : wrong) {
    const auto parsed = parse_net_address(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find(why), std::string::npos) << parsed.status().message();
  }
}

TEST(NetAddress, ListsHaveNoneTwice) {
  EXPECT_TRUE(parse_net_addresses("  ", 2)->empty());
  EXPECT_EQ(parse_net_addresses(" a:1 ,b:1", 2)->size(), 2u);
  EXPECT_NE(parse_net_addresses("a:1,a:1", 3).status().message().find("a:1 is listed twice"),
            std::string::npos);
  EXPECT_FALSE(parse_net_addresses("a:1,b:1,c:1", 2).ok());
  EXPECT_FALSE(parse_net_addresses("a:1,", 2).ok());
}

TEST(NetAddress, ListsMayTellRacks) {
  const auto all = parse_net_addresses("row-1/a:1, [::1]:2,top/b:3", 3);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->at(0).rack, "row-1");
  EXPECT_EQ(all->at(0).text(), "row-1/a:1");
  EXPECT_EQ(all->at(1).rack, "");
  EXPECT_EQ(all->at(2).host, "b");
  for (const char* wrong : {"/a:1", "x y/a:1", "x/y/a:1", "x/a:1,y/a:1"}) {
    EXPECT_FALSE(parse_net_addresses(wrong, 3).ok()) << wrong;
  }
  EXPECT_FALSE(is_rack_name(std::string(65, 'x')));
}

TEST(PortRange, BothEndsBelongToIt) {
  PortRange range;
  ASSERT_TRUE(parse_port_range("42000-42003", range));
  EXPECT_FALSE(range.any());
  EXPECT_EQ(range.size(), 4u);
  ASSERT_TRUE(parse_port_range("65535", range));
  EXPECT_EQ(range.first, 65535);
  EXPECT_EQ(range.size(), 1u);
  ASSERT_TRUE(parse_port_range(" ", range));
  EXPECT_TRUE(range.any());
}

}  // namespace
}  // namespace mcast
