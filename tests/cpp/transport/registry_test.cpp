// The table of transports: the setting selects any row, and accepts no other value.
#include "transport/registry.h"

#include <gtest/gtest.h>

#include <string>

namespace mcast {
namespace {

TEST(TransportRegistry, EveryRowIsAChoiceOfTheSetting) {
  ASSERT_EQ(transport_types().size(), std::size(kTransportNames));
  for (size_t i = 0; i < transport_types().size(); i++) {
    const TransportType& type = transport_types()[i];
    EXPECT_STREQ(type.name, kTransportNames[i]);
    EXPECT_EQ(find_transport(type.name), &type);
    EXPECT_TRUE(Config::resolve({{"transport", type.name}}, {}).ok()) << type.name;
  }
  EXPECT_EQ(find_transport("auto"), nullptr);
  EXPECT_EQ(find_transport("carrier pigeons"), nullptr);
  EXPECT_FALSE(Config::resolve({{"transport", "carrier pigeons"}}, {}).ok());
}

TEST(TransportRegistry, TheFallbackWorksHereAndKnowsItsName) {
  Config config;
  config.interface = "=lo";
  EXPECT_TRUE(fallback_transport().problem(config).ok());
  for (const LaneId lane : kBothLanes) {
    auto made = fallback_transport().make(config, lane, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_STREQ((*made)->name(), fallback_transport().name);
    EXPECT_TRUE((*made)->has_its_address());
  }
  config.interface = "=nosuchnic0";
  EXPECT_EQ(fallback_transport().problem(config).code(), Code::kUnavailable);
  EXPECT_EQ(fallback_transport().make(config, LaneId::kReduce, nullptr).status().code(),
            Code::kUnavailable);
}

}  // namespace
}  // namespace mcast
