// Tests the settings of a group that a client sends to an engine of another version.
#include "host_engine/client/client_creation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mcast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(ClientSettings, OnlyThoseThatAreNotAtTheirDefaultsAreSent) {
  const auto config = Config::resolve({{"window", "1M"}, {"eager", "32768"}}, {});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(non_defaults(*config), ElementsAre(Pair("window", config->get("window"))));
  EXPECT_THAT(non_defaults(Config()), ElementsAre());
  const auto mapped = Config::resolve({{"engine_memory", "map_all"}}, {});
  EXPECT_THAT(non_defaults(*mapped), ElementsAre()) << "of the client's memory, not the engine's";
  const auto named = Config::resolve({{"engine_user", "root"}}, {});
  ASSERT_TRUE(named.ok());
  EXPECT_THAT(non_defaults(*named), ElementsAre()) << "it is about the way to the engine";
}

TEST(ClientSettings, AnEngineThatDoesNotKnowOneIsNoEngineForTheGroup) {
  ipc::Welcome older;
  older.settings = "window,chains";
  EXPECT_TRUE(knows(older, 7, {}).ok());
  EXPECT_TRUE(knows(older, 7, {{"window", "1"}}).ok());
  const Status not_known = knows(older, 7, {{"window", "1"}, {"chain", "2"}});
  EXPECT_EQ(not_known.code(), Code::kMismatch);
  EXPECT_THAT(not_known.message(), HasSubstr("(process 7) is of another version and does not know "
                                             "the setting chain:"));
  older.settings = "";
  EXPECT_TRUE(knows(older, 7, {{"chain", "2"}}).ok()) << "it says nothing: its answer will";
}

}  // namespace
}  // namespace mcast::test
