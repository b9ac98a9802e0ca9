// The addresses to which an engine connects for its clients, and the client settings that it
// accepts.
#include "host_engine/server/reach_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host_engine/server/client_settings.h"

namespace mcast::test {
namespace {

using service::ReachPolicy;
using testing::HasSubstr;

std::vector<IpNetwork> networks(const std::string& text) {
  auto parsed = parse_networks(text, 64);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return *parsed;
}

TEST(ReachTest, NetworksOfTheInterfacesByDefault) {
  ReachPolicy reach({});
  EXPECT_TRUE(reach.may("127.0.0.1", 40000).ok());
  EXPECT_TRUE(reach.may("127.1.2.3", 1024).ok());
  EXPECT_TRUE(reach.may("::1", 1024).ok());
  // Of a class that no interface has.
  const Status far = reach.may("240.0.0.7", 40000);
  EXPECT_EQ(far.code(), Code::kInvalidArgument);
  EXPECT_THAT(far.message(), HasSubstr("the engine does not connect to 240.0.0.7:40000"));
  EXPECT_THAT(far.message(), HasSubstr("--peers"));
  EXPECT_THAT(reach.may("2001:db8::7", 40000).message(),
              HasSubstr("the engine does not connect to [2001:db8::7]:40000"));
}

TEST(ReachTest, OnlyGivenNetworksAndThisHost) {
  ReachPolicy reach(networks("192.0.2.0/25, 198.51.100.9"));
  EXPECT_TRUE(reach.may("192.0.2.7", 40000).ok());
  EXPECT_TRUE(reach.may("198.51.100.9", 40000).ok());
  EXPECT_TRUE(reach.may("127.0.0.1", 40000).ok());
  for (const char* const far : {"192.0.2.128", "198.51.100.8", "203.0.113.1", "0.0.0.0"}) {
    EXPECT_THAT(reach.may(far, 40000).message(), HasSubstr("the networks in its --peers"));
  }
}

TEST(ReachTest, PortsOfHostsServicesAreNotForClients) {
  ReachPolicy reach(networks("192.0.2.0/24"));
  EXPECT_FALSE(reach.may("127.0.0.1", 22).ok());
  EXPECT_FALSE(reach.may("192.0.2.1", 1023).ok());
  EXPECT_FALSE(reach.may("192.0.2.1", 0).ok());
}

TEST(ReachTest, EveryAddressOfAStripe) {
  ReachPolicy reach(networks("192.0.2.0/24"));
  EXPECT_TRUE(reach.may("192.0.2.1+192.0.2.2:5000+192.0.2.3:5001", 4000).ok());
  EXPECT_FALSE(reach.may("192.0.2.1+203.0.113.1:5000", 4000).ok());
  EXPECT_FALSE(reach.may("192.0.2.1+192.0.2.2:22", 4000).ok());
  for (const char* const none : {"", "a", "192.0.2.1+", "192.0.2.1+192.0.2.2", "+192.0.2.2:5000",
                                 "192.0.2.1+192.0.2.2:x", "192.0.2.1+192.0.2.2:70000"}) {
    EXPECT_THAT(reach.may(none, 4000).message(), HasSubstr("is not an address")) << none;
  }
}

TEST(ClientSettings, FilesAndCpusAndTheEnginesTimeAreNotTheClients) {
  std::map<std::string, std::string> settings{{"secret_file", "/dev/fd/7"},
                                              {"metrics_file", "/tmp/x"},
                                              {"pin", "1"},
                                              {"linger", "86400000"},
                                              {"eager", "4096"}};
  service::drop_local_settings(settings);
  EXPECT_EQ(settings, (std::map<std::string, std::string>{{"eager", "4096"}}));
}

TEST(ClientSettings, UnservedSecurityModeIsRefused) {
  EngineSecurity offered;
  offered.modes = {"auth", "sealed"};
  EngineContext engine;
  const auto asked = [&engine](const char* mode) {
    return service::served(*Config::resolve({{"security", mode}}, {}), engine);
  };
  EXPECT_TRUE(asked("sealed").ok()) << "no engine: a process's own affair";
  engine.security = std::make_shared<const EngineSecurity>(offered);
  EXPECT_TRUE(asked("auth").ok());
  EXPECT_THAT(asked("off").message(), HasSubstr("serves security=auth,sealed, not security=off"));
}

TEST(ClientSettings, MemoryOfAGroupIsBounded) {
  for (const char* const name : {"staging", "retransmit", "incast"}) {
    auto config = Config::resolve({{name, "256M"}}, {});
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_TRUE(service::bounded(*config).ok());
    config = Config::resolve({{name, "257M"}}, {});
    const Status status = service::bounded(*config);
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr(std::string("engine's limit of 256M for the setting ") +
                                            name + " is exceeded: 257M"));
  }
}

}  // namespace
}  // namespace mcast::test
