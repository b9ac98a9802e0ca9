// The command line of an aggregator: accepted options, and the errors of refused ones.
#include "aggregation/server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>

namespace mcast::service {
namespace {

using ::testing::HasSubstr;

Result<CommandLine> parse(const std::vector<std::string>& arguments,
                          const std::map<std::string, std::string>& environment = {}) {
  return parse_command_line(arguments, environment);
}

TEST(AggregatorOptions, DefaultsApplyWithoutArguments) {
  const auto line = parse({});
  ASSERT_TRUE(line.ok());
  const Options& o = line->options;
  EXPECT_EQ(o.host, "");
  EXPECT_EQ(o.port, 7117);
  EXPECT_EQ(o.lanes, 1u);
  EXPECT_EQ(o.quota, 512u << 20);
  EXPECT_EQ(o.job_quota(), 128u << 20);
  EXPECT_EQ(o.jobs, 16u);
  EXPECT_EQ(o.rate, 0u);
  EXPECT_TRUE(o.allows(IpAddress::v4(0x01020304)));
}

TEST(AggregatorOptions, EachIsRead) {
  const auto line = parse({"--listen", "10.0.0.9:7200", "--lanes=2", "--quota", "1G",
                           "--quota-per-job=100M", "--jobs", "3", "--rate", "100gbit", "--deadline",
                           "50", "--interface", "=eth1", "--allow", "10.0.0.0/8,192.168.1.7",
                           "--allow=172.16.0.0/12", "--status", "/x/y.sock"});
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  const Options& o = line->options;
  EXPECT_EQ(o.host, "10.0.0.9");
  EXPECT_EQ(o.port, 7200);
  EXPECT_EQ(o.lanes, 2u);
  EXPECT_EQ(o.quota, 1u << 30);
  EXPECT_EQ(o.job_quota(), 100u << 20);
  EXPECT_EQ(o.jobs, 3u);
  EXPECT_EQ(o.rate, 100'000'000'000u);
  EXPECT_EQ(o.deadline, 50 * kMilli);
  EXPECT_EQ(o.config.interface, "=eth1");
  EXPECT_EQ(o.status, "/x/y.sock");
  EXPECT_TRUE(o.allows(IpAddress::v4(0x0a010203)));
  EXPECT_TRUE(o.allows(IpAddress::v4(0xc0a80107)));
  EXPECT_TRUE(o.allows(IpAddress::v4(0xac100001)));
  EXPECT_FALSE(o.allows(IpAddress::v4(0xc0a80108)));
}

TEST(AggregatorOptions, ListenIsHostOrPortOrBoth) {
  EXPECT_EQ(parse({"--listen", ":0"})->options.port, 0);
  EXPECT_EQ(parse({"--listen", "node7"})->options.host, "node7");
  EXPECT_EQ(parse({"--listen", "node7"})->options.port, 7117);
  EXPECT_EQ(parse({"--listen", "*:80"})->options.host, "");
}

TEST(AggregatorOptions, WrongOptionIsNamedWithTheAllowedValues) {
  const auto why = [](const std::vector<std::string>& arguments) {
    const auto line = parse(arguments);
    return line.ok() ? std::string("ok") : line.status().message();
  };
  EXPECT_THAT(why({"--lane", "2"}), HasSubstr("no option \"--lane\""));
  EXPECT_THAT(why({"status"}), HasSubstr("no option \"status\""));
  EXPECT_THAT(why({"--lanes"}), HasSubstr("--lanes needs a value: N"));
  EXPECT_THAT(why({"--lanes", "0"}),
              HasSubstr("\"0\" is not valid; allowed: a whole number from 1"));
  EXPECT_THAT(why({"--quota", "12"}), HasSubstr("--quota"));
  EXPECT_THAT(why({"--rate", "fast"}), HasSubstr("100gbit"));
  EXPECT_THAT(why({"--deadline", "1s"}), HasSubstr("milliseconds"));
  EXPECT_THAT(why({"--listen", "host:70000"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(why({"--listen", "::1"}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(why({"--allow", "10.0.0.1/8"}), HasSubstr("10.0.0.0/8"));
  EXPECT_THAT(why({"--allow", "10.0.0.0/33"}), HasSubstr("networks such as 10.0.0.0/8"));
  EXPECT_THAT(why({"--quota", "8M", "--quota-per-job", "9M"}), HasSubstr("more than --quota"));
  EXPECT_THAT(why({"--status", std::string(101, 'x')}), HasSubstr("100 bytes"));
}

TEST(AggregatorOptions, SettingsOfTheTransportsComeFromTheEnvironment) {
  EXPECT_EQ(parse({}, {{"MCAST_SOCKET_IFNAME", "=ib0"}})->options.config.interface, "=ib0");
  EXPECT_EQ(
      parse({"--interface", "=e1"}, {{"MCAST_SOCKET_IFNAME", "=ib0"}})->options.config.interface,
      "=e1");
  EXPECT_THAT(parse({}, {{"MCAST_MAX_MTU", "5"}}).status().message(), HasSubstr("MCAST_MAX_MTU"));
}

TEST(AggregatorOptions, HelpNamesEveryOption) {
  EXPECT_EQ(parse({"--lanes", "2", "--help"})->action, Action::kHelp);
  EXPECT_EQ(parse({"--version"})->action, Action::kVersion);
  for (const OptionInfo& option : option_table()) {
    EXPECT_THAT(help_text(), HasSubstr(std::string("  ") + option.name + " " + option.argument));
  }
}

TEST(AggregatorOptions, ListensAtAddressesOfIPv6InBrackets) {
  const auto listen = [](const char* text) { return parse({"--listen", text}); };
  EXPECT_EQ(listen("[fd00::1]:8000")->options.host, "fd00::1");
  EXPECT_EQ(listen("[fd00::1]:8000")->options.port, 8000);
  EXPECT_EQ(listen("[fd00::1]")->options.port, 7117);
  EXPECT_EQ(listen("[::]:8000")->options.host, "") << "all addresses";
  for (const char* const wrong :
       {"fd00::1:8000", "[fd00::1", "[fd00::1]8000", "[host]:1", "[]:1"}) {
    EXPECT_FALSE(listen(wrong).ok()) << wrong;
  }
}

TEST(AggregatorOptions, AllowTakesNetworksOfBothVersions) {
  const auto line = parse({"--allow", "10.0.0.0/8,fd00:1::/64", "--allow", "192.168.1.7"});
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  for (const auto& [text, allowed] : {std::pair{"10.1.2.3", true},
                                      {"11.0.0.1", false},
                                      {"192.168.1.7", true},
                                      {"fd00:1::9", true},
                                      {"fd00:2::9", false}}) {
    EXPECT_EQ(line->options.allows(*IpAddress::parse(text)), allowed) << text;
  }
  for (const char* wrong : {"", "10", "10.0.0.0/", "10.0.0.0/x", "host", "10.0.0.0/8/8"}) {
    EXPECT_FALSE(parse({"--allow", wrong}).ok()) << wrong;
  }
}

}  // namespace
}  // namespace mcast::service
