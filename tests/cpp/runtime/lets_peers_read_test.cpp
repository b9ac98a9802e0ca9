// When a process that makes a group lets processes of its user read its memory, and so its keys.
#include <gtest/gtest.h>

#include "runtime/bootstrap.h"

namespace mcast::test {
namespace {

TEST(LetsPeersRead, OnlyUnguardedRanksOutsideOfEnginesThatDoNotAskForSlots) {
  for (const char* const memory : {"auto", "slots"}) {
    const auto config = Config::resolve({{"shared_memory", memory}}, {});
    ASSERT_TRUE(config.ok());
    for (const bool guarded : {false, true}) {
      for (const bool in_engine : {false, true}) {
        SCOPED_TRACE(std::string(memory) + (guarded ? ", guarded" : "") +
                     (in_engine ? ", in an engine" : ""));
        const bool slots = std::string(memory) == "slots";
        EXPECT_EQ(lets_peers_read(*config, guarded, in_engine), !slots && !guarded && !in_engine);
      }
    }
  }
}

}  // namespace
}  // namespace mcast::test
