// Settings: how values parse, which layer takes precedence, and that every refusal names the
// setting, the value, its origin and the allowed values.
#include "base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string_view>

#include "base/log.h"
#include "base/rng.h"

namespace mcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Map = std::map<std::string, std::string>;

Config good(const Map& options, const Map& environment = {}) {
  auto config = Config::resolve(options, environment);
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return config.ok() ? config.value() : Config{};
}

std::string error(const Map& options, const Map& environment = {}) {
  auto config = Config::resolve(options, environment);
  EXPECT_FALSE(config.ok());
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
  return config.status().message();
}

// Sets one setting, and a second one if the first requires it.
Config with(const SettingInfo& info, const std::string& value) {
  if (info.name != std::string("source_auth")) return good({{info.name, value}});
  return good({{info.name, value}, {"security", "auth"}});
}

TEST(Config, DefaultsAreThoseOfTheTable) {
  const Config config = good({});
  EXPECT_EQ(config.eager, 32768u);
  EXPECT_EQ(config.liveness_limit, 20 * kSecond);
  EXPECT_EQ(config.cutoff, 2 * kMilli);
  EXPECT_EQ(config.transport, "auto");
  for (const SettingInfo& info : setting_table()) {
    EXPECT_EQ(config.get(info.name), info.default_text) << info.name;
  }
}

TEST(Config, TheTableIsConsistent) {
  std::set<std::string> names, variables;
  for (const SettingInfo& info : setting_table()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(variables.insert(info.env).second) << info.env;
    EXPECT_EQ(std::string(info.env).rfind("MCAST_", 0), 0u) << info.env;
    EXPECT_GT(std::string(info.help).size(), 10u) << info.name;
    EXPECT_THAT(std::string("UDS"), HasSubstr(std::string(1, info.kind)));
    if (info.kind != 'S') {
      EXPECT_LT(info.min, info.max) << info.name;
    }
    // The default must itself be accepted. Otherwise no one could set a setting back.
    EXPECT_EQ(good({{info.name, info.default_text}}).get(info.name), info.default_text);
  }
  EXPECT_EQ(good({}).values().size(), setting_table().size());
}

TEST(Config, BothBoundsAreInclusiveAndTheNextValueIsRefused) {
  for (const SettingInfo& info : setting_table()) {
    if (info.kind != 'U') continue;
    const auto lo = static_cast<uint64_t>(info.min), hi = static_cast<uint64_t>(info.max);
    EXPECT_EQ(good({{info.name, std::to_string(lo)}}).get(info.name), std::to_string(lo));
    EXPECT_EQ(with(info, std::to_string(hi)).get(info.name), std::to_string(hi));
    EXPECT_THAT(error({{info.name, std::to_string(hi + 1)}}),
                AllOf(HasSubstr(info.name), HasSubstr(std::to_string(hi))));
    if (lo > 0) {
      EXPECT_THAT(error({{info.name, std::to_string(lo - 1)}}), HasSubstr(info.name));
    }
  }
}

TEST(Config, DurationBoundsAreInclusive) {
  EXPECT_EQ(good({{"cutoff", "0.01"}}).cutoff, 10 * kMicro);
  EXPECT_EQ(good({{"cutoff", "60000"}}).cutoff, 60 * kSecond);
  EXPECT_THAT(error({{"cutoff", "0.009"}}), HasSubstr("0.01 to 60000"));
  EXPECT_THAT(error({{"cutoff", "60000.001"}}), HasSubstr("0.01 to 60000"));
  EXPECT_EQ(good({{"linger", "0"}}).linger, 0);
  EXPECT_THAT(error({{"linger", "-1"}}), HasSubstr("linger"));
}

TEST(Config, SuffixesAreBinaryAndOfEitherCase) {
  EXPECT_EQ(good({{"eager", "32K"}}).eager, 32768u);
  EXPECT_EQ(good({{"eager", "32k"}}).eager, 32768u);
  EXPECT_EQ(good({{"staging", "3M"}}).staging, 3u << 20);
  EXPECT_EQ(good({{"staging", "3m"}}).staging, 3u << 20);
  EXPECT_EQ(good({{"rcvbuf", "1G"}}).rcvbuf, 1u << 30);
  EXPECT_EQ(good({{"rcvbuf", "1g"}}).rcvbuf, 1u << 30);
}

TEST(Config, WhiteSpaceAroundAValueIsIgnored) {
  EXPECT_EQ(good({{"eager", " 16 K\n"}}).eager, 16384u);
  EXPECT_EQ(good({{"cutoff", "\t1.5 "}}).cutoff, 1500 * kMicro);
  EXPECT_EQ(good({{"transport", " udp "}}).transport, "udp");
  EXPECT_EQ(good({{"interface", " =eth0 "}}).interface, "=eth0");
}

TEST(Config, DurationsAreMillisecondsAndMayBeFractional) {
  EXPECT_EQ(good({{"cutoff", "0.5"}}).cutoff, 500 * kMicro);
  EXPECT_EQ(good({{"cutoff", ".25"}}).cutoff, 250 * kMicro);
  EXPECT_EQ(good({{"liveness_limit", "1e3"}}).liveness_limit, kSecond);
  EXPECT_EQ(good({{"cutoff", "0.123456"}}).get("cutoff"), "0.123456");
  EXPECT_EQ(good({{"cutoff", "1.50"}}).get("cutoff"), "1.5");
  EXPECT_EQ(good({{"cutoff", "7.0"}}).get("cutoff"), "7");
}

TEST(Config, NumbersThatAreNotNumbersAreRefused) {
  for (const char* text : {"", " ", "K", "abc", "-1", "+1", "1.5", "1.5K", "0x10", "12X", "1KB",
                           "1K K", "1 2", "1e3", "99999999999999999999", "18446744073709551615",
                           "18014398509481985K", "17179869184G", "\xc3\xa9"}) {
    EXPECT_THAT(error({{"eager", text}}),
                AllOf(HasSubstr("setting eager"), HasSubstr("\"" + std::string(text) + "\""),
                      HasSubstr("option eager"), HasSubstr("0 to 1048576"), HasSubstr("K, M or G")))
        << text;
  }
  for (const char* text : {"", "fast", "inf", "nan", "-nan", "1e400", "5ms", "5 s", "1K", "1,5",
                           "0x1p3", "1..2", "+1"}) {
    EXPECT_THAT(error({{"probe_timeout", text}}),
                AllOf(HasSubstr("probe_timeout"), HasSubstr("milliseconds"),
                      HasSubstr("10 to 600000"), HasSubstr("\"" + std::string(text) + "\"")))
        << text;
  }
}

TEST(Config, ChoicesAreChecked) {
  for (const char* word : {"auto", "udp", "verbs"})
    EXPECT_EQ(good({{"transport", word}}).transport, word);
  for (const char* word : {"auto", "multicast", "ring"}) {
    EXPECT_EQ(good({{"algorithm", word}}).algorithm, word);
  }
  for (const char* word : {"off", "error", "warn", "info", "trace"}) {
    EXPECT_EQ(good({{"debug", word}}).debug, word);
    EXPECT_TRUE(parse_log_level(word).has_value());
  }
  EXPECT_EQ(good({{"algorithm", "RING"}}).algorithm, "ring");
  EXPECT_THAT(error({{"transport", "tcp"}}),
              AllOf(HasSubstr("\"tcp\""), HasSubstr("auto, udp or verbs")));
  EXPECT_THAT(error({{"algorithm", "tree"}}), HasSubstr("auto, multicast or ring"));
  EXPECT_THAT(error({{"debug", "verbose"}}), HasSubstr("off, error, warn, info or trace"));
  EXPECT_THAT(error({{"transport", ""}}), HasSubstr("auto, udp or verbs"));
}

TEST(Config, ChunkIsAMultipleOf64) {
  EXPECT_EQ(good({{"chunk", "0"}}).chunk, 0u);
  EXPECT_EQ(good({{"chunk", "64"}}).chunk, 64u);
  EXPECT_EQ(good({{"chunk", "8K"}}).chunk, 8192u);
  EXPECT_EQ(good({{"chunk", "65408"}}).chunk, 65408u);
  EXPECT_THAT(error({{"chunk", "1400"}}), AllOf(HasSubstr("1400"), HasSubstr("multiple of 64")));
  EXPECT_THAT(error({}, {{"MCAST_CHUNK", "63"}}), HasSubstr("environment variable MCAST_CHUNK"));
}

TEST(Config, AnOptionWinsOverTheEnvironmentWhichWinsOverTheDefault) {
  EXPECT_EQ(good({}, {{"MCAST_EAGER", "1K"}}).eager, 1024u);
  EXPECT_EQ(good({{"eager", "2K"}}, {{"MCAST_EAGER", "1K"}}).eager, 2048u);
  EXPECT_EQ(good({{"interface", ""}}, {{"MCAST_SOCKET_IFNAME", "eth"}}).interface, "");
  EXPECT_EQ(good({{"eager", "2K"}}, {{"MCAST_EAGER", "bad"}}).eager, 2048u);
  EXPECT_THAT(error({}, {{"MCAST_EAGER", "bad"}}),
              AllOf(HasSubstr("environment variable MCAST_EAGER"), HasSubstr("\"bad\""),
                    Not(HasSubstr("option eager"))));
}

TEST(Config, EmptyAndForeignVariablesAreIgnored) {
  EXPECT_EQ(good({}, {{"MCAST_EAGER", ""}}).eager, 32768u);
  EXPECT_EQ(good({}, {{"MCAST_TRANSPORT", "  "}}).transport, "auto");
  EXPECT_EQ(good({}, {{"MCAST_SOMETHING_ELSE", "x"}}).values(), good({}).values());
}

TEST(Config, UnknownOptionsNameTheNearest) {
  EXPECT_THAT(error({{"eagre", "1"}}),
              AllOf(HasSubstr("\"eagre\""), HasSubstr("did you mean \"eager\"")));
  EXPECT_THAT(error({{"probe-timeout", "1"}}), HasSubstr("did you mean \"probe_timeout\""));
  EXPECT_THAT(error({{"MCAST_WINDOW", "1"}}), HasSubstr("did you mean \"window\""));
  EXPECT_THAT(error({{"Chunk", "64"}}), HasSubstr("did you mean \"chunk\""));
  EXPECT_THAT(error({{"liveness", "1"}}), HasSubstr("liveness_limit"));
  const std::string far = error({{"qqqqqqqqqqqq", "1"}});
  EXPECT_THAT(far, Not(HasSubstr("did you mean")));
  EXPECT_THAT(far, AllOf(HasSubstr(" eager"), HasSubstr(" debug")));
  EXPECT_THAT(error({{"", "1"}}), HasSubstr("unknown option \"\""));
}

TEST(Config, GetOfAnUnknownNameIsEmpty) { EXPECT_EQ(good({}).get("nothing"), ""); }

TEST(Config, ValuesCanBeGivenBack) {
  const Config config = good({{"eager", "5K"}, {"cutoff", "0.75"}, {"faults", "drop:rate=0.1"}});
  EXPECT_EQ(good(config.values()).values(), config.values());
}

TEST(Config, AnyTextIsEitherRefusedOrPrintedBackTheSame) {
  constexpr std::string_view kAlphabet = "0123456789.eE+-kKmMgG \t\"x\0%";
  Rng rng(1);
  int accepted = 0;
  for (int run = 0; run < 20000; ++run) {
    const auto& table = setting_table();
    const SettingInfo& info = table[rng.below(table.size())];
    std::string text;
    for (uint64_t length = rng.below(6); text.size() < length;) {
      text += kAlphabet[rng.below(kAlphabet.size())];
    }
    const auto config = Config::resolve({{info.name, text}}, {});
    if (!config.ok()) continue;
    ++accepted;
    const std::string printed = config.value().get(info.name);
    ASSERT_EQ(good({{info.name, printed}}).get(info.name), printed) << info.name << " " << text;
    if (info.kind == 'U') {
      ASSERT_GE(std::stod(printed), info.min);
      ASSERT_LE(std::stod(printed), info.max);
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Config, AgreedTextHoldsExactlyTheAgreedSettings) {
  const Config config = good({});
  const std::string text = " " + config.agreed_text() + " ";
  for (const SettingInfo& info : setting_table()) {
    const std::string item = std::string(" ") + info.name + "=" + config.get(info.name) + " ";
    EXPECT_EQ(text.find(item) != std::string::npos, info.agreed) << info.name;
  }
}

TEST(Config, AgreedTextFollowsTheAgreedSettingsOnly) {
  const std::string base = good({}).agreed_text();
  std::set<std::string> seen = {base, good({{"security", "auth"}}).agreed_text()};
  for (const SettingInfo& info : setting_table()) {
    if (info.kind == 'S') continue;
    const std::string value = info.kind == 'U' && info.name == std::string("chunk") ? "64" : "100";
    const std::string text =
        with(info, info.min > 100 || info.max < 100 ? std::to_string(uint64_t(info.max)) : value)
            .agreed_text();
    if (info.agreed) {
      EXPECT_TRUE(seen.insert(text).second) << info.name;
    } else {
      EXPECT_EQ(text, base) << info.name;
    }
  }
  EXPECT_NE(good({{"algorithm", "ring"}}).agreed_text(), base);
  EXPECT_EQ(good({{"algorithm", "AUTO"}, {"eager", "32K"}}).agreed_text(), base);
}

TEST(Config, AgreedTextIsTheSameInEveryBuild) {
  // Ranks of different builds compare this text.
  Config config;
  const std::string text = config.agreed_text();
  ASSERT_EQ(text,
            "transport=auto shared_memory=auto algorithm=auto max_mtu=9000 chunk=0 eager=32768 "
            "window=0 chains=0 subgroups=1 arity=32 "
            "staging=4194304 reorder=0 incast=2097152 fold=rank port_queue=2097152 "
            "aggregators= aggregate=careful aggregator_patience=1000 partial=0 link_rate=0 "
            "liveness_limit=20000 probe_timeout=2000 rate_test=4194304 "
            "security=off trust_store=0 security_suite=auto source_auth=0");
}

// Checks which settings keep groups apart. If a row loses its mark, groups with different values
// would share sockets.
TEST(Config, GroupsThatDifferInALaneSettingShareNoLanes) {
  const std::string base = good({}).lane_key();
  std::set<std::string> marked;
  for (const SettingInfo& info : setting_table()) {
    if (info.lane) marked.insert(info.name);
    if (info.kind == 'S') continue;
    const std::string value = std::to_string(uint64_t(info.max));
    const std::string other = value == info.default_text ? "0" : value;
    const bool unaligned = info.name == std::string("chunk");
    const std::string key = with(info, unaligned ? "64" : other).lane_key();
    EXPECT_EQ(key != with(info, info.default_text).lane_key(), info.lane) << info.name;
  }
  EXPECT_EQ(marked, (std::set<std::string>{"ib_hca", "interface", "faults", "max_mtu", "rcvbuf",
                                           "sndbuf", "ttl", "port_range", "pin", "liveness_limit",
                                           "probe_timeout", "security", "secret_file", "job",
                                           "trust_store", "security_suite", "allow", "monitor"}));
  EXPECT_NE(good({{"interface", "=eth1"}}).lane_key(), base);
  EXPECT_EQ(good({{"algorithm", "ring"}}).lane_key(), base);
}

TEST(Config, SourceAuthNeedsAGuard) {
  EXPECT_EQ(good({{"source_auth", "0"}}).source_auth, 0u);
  for (const char* mode : {"auth", "sealed"}) {
    EXPECT_EQ(good({{"source_auth", "1"}}, {{"MCAST_SECURITY", mode}}).source_auth, 1u);
  }
  for (const char* source : {"option", "environment"}) {
    const bool option = source == std::string("option");
    const std::map<std::string, std::string> none, one{{"source_auth", "1"}};
    EXPECT_THAT(
        error(option ? one : none,
              option ? none : std::map<std::string, std::string>{{"MCAST_SOURCE_AUTH", "1"}}),
        HasSubstr("setting source_auth: 1 needs security=auth or security=sealed"))
        << source;
  }
}

TEST(Config, OneSettingIsCheckedAlone) {
  EXPECT_TRUE(Config::check_setting("source_auth", "1").ok()) << "others may come later";
  EXPECT_EQ(Config::check_setting("eager", "many").message(), error({{"eager", "many"}}));
  EXPECT_EQ(Config::check_setting("eagr", "1").message(), error({{"eagr", "1"}}));
}

TEST(Config, ARangeOfPortsHasTwoEnds) {
  EXPECT_EQ(good({{"port_range", " 42000-42999 "}}).port_range, "42000-42999");
  EXPECT_EQ(good({{"port_range", ""}}, {{"MCAST_PORT_RANGE", "1-2"}}).port_range, "");
  for (const char* wrong :
       {"0", "0-9", "9-8", "1-65536", "1-", "-1", "1-2-3", "1,2", "1 - 2", "a"}) {
    EXPECT_THAT(error({{"port_range", wrong}}),
                AllOf(HasSubstr("setting port_range"), HasSubstr("ports from 1 to 65535")))
        << wrong;
  }
}

TEST(Config, ARackIsAName) {
  EXPECT_EQ(good({{"rack", " row-3.b "}}).rack, "row-3.b");
  EXPECT_EQ(good({{"rack", ""}}, {{"MCAST_RACK", "a"}}).rack, "");
  EXPECT_EQ(good({{"aggregators", "row3/a:1, b:2"}}).aggregators, "row3/a:1,b:2");
  for (const char* wrong : {"a b", "a/b", "a,b"}) {
    EXPECT_THAT(error({{"rack", wrong}}), HasSubstr("setting rack")) << wrong;
  }
}

TEST(Config, AggregatorsAreAddresses) {
  const Config config = good({{"aggregators", " agg1:7117 , 10.0.0.9:7118,[fd00::9]:1 "}});
  EXPECT_EQ(config.aggregators, "agg1:7117,10.0.0.9:7118,[fd00::9]:1");
  EXPECT_EQ(good({{"aggregators", ""}}, {{"MCAST_AGGREGATORS", "a:1"}}).aggregators, "");
  EXPECT_EQ(good({}, {{"MCAST_AGGREGATORS", "a:1"}}).aggregators, "a:1");
  for (const char* wrong : {"a", "a:", ":1", "a:0", "a:65536", "a:1,", "a:1,,b:1", "a:1,a:1",
                            "a b:1", "[::1:7117", "a:1;b:1", "a:-1", "/a:1", "r/s/a:1"}) {
    EXPECT_THAT(error({{"aggregators", wrong}}),
                AllOf(HasSubstr("setting aggregators"), HasSubstr(wrong),
                      HasSubstr("host:port, each once, separated by commas, at most 64")))
        << wrong;
  }
  EXPECT_THAT(error({{"aggregators", "a:1,b,c:2"}}),
              HasSubstr("is not valid (\"b\" has no port: it must be host:port); allowed: "));
  EXPECT_THAT(error({{"aggregators", "a:1,a:1"}}), HasSubstr("(a:1 is listed twice)"));
  EXPECT_THAT(error({{"aggregators", "r 1/a:1"}}), HasSubstr("(\"r 1\" is not a rack name)"));
  std::string many = "a:1";
  for (int i = 2; i <= 65; i++) many += ",a:" + std::to_string(i);
  EXPECT_THAT(error({{"aggregators", many}}), HasSubstr("at most 64"));
  EXPECT_THAT(error({{"aggregate", "some"}}), HasSubstr("careful, both or off"));
  EXPECT_EQ(good({{"aggregate", "OFF"}}).aggregate, "off");
  EXPECT_EQ(good({{"aggregator_patience", "250"}}).aggregator_patience, 250 * kMilli);
}

TEST(Config, TheRateOfALinkIsWrittenLikeARate) {
  EXPECT_EQ(good({{"link_rate", "300mbit"}}).link_rate, 300'000'000u);
  EXPECT_EQ(good({{"link_rate", "25 Gbit"}}).link_rate, 25'000'000'000u);
  EXPECT_EQ(good({{"link_rate", "5"}}).link_rate, 5u);
  EXPECT_EQ(good({{"link_rate", "0"}}).link_rate, 0u);
  for (const char* wrong : {"fast", "300M", "20000gbit", "-1"}) {
    EXPECT_THAT(error({{"link_rate", wrong}}),
                AllOf(HasSubstr("bits per second from 0 to"), HasSubstr("kbit, mbit or gbit")));
  }
}

TEST(Config, ReadEnvironmentTakesOurVariablesOnly) {
  ::setenv("MCAST_EAGER", "4K", 1);
  ::setenv("MCAST_FAULTS", "drop:rate=0.1,seed=7", 1);  // a value with '='
  ::setenv("NOT_MCAST_EAGER", "1", 1);
  const Map environment = Config::read_environment();
  EXPECT_EQ(environment.at("MCAST_EAGER"), "4K");
  EXPECT_EQ(environment.at("MCAST_FAULTS"), "drop:rate=0.1,seed=7");
  EXPECT_EQ(environment.count("NOT_MCAST_EAGER"), 0u);
  EXPECT_EQ(good({}, environment).eager, 4096u);
  ::unsetenv("MCAST_EAGER");
  ::unsetenv("MCAST_FAULTS");
  ::unsetenv("NOT_MCAST_EAGER");
  EXPECT_EQ(Config::read_environment().count("MCAST_EAGER"), 0u);
}

}  // namespace
}  // namespace mcast
