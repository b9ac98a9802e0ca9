#include "runtime/connection_room.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

#include "base/descriptors.h"
#include "base/log.h"

namespace mcast {
namespace {

// Each test has its own process, since a lowered hard limit stays low.
void limit(uint64_t soft, uint64_t hard) {
  const struct rlimit both { soft, hard };
  if (::setrlimit(RLIMIT_NOFILE, &both) != 0) std::exit(99);
}

TEST(ConnectionRoom, CountsBothLanesAndEveryInterface) {
  EXPECT_EQ(connections_of(1, 1, 1).most, 0u);
  EXPECT_EQ(connections_of(1024, 1, 1).reductions, 1023u);
  EXPECT_EQ(connections_of(1024, 1, 1).most, 1023u * 5);
  EXPECT_EQ(connections_of(5, 2, 4).reductions, 16u);
  EXPECT_EQ(connections_of(5, 2, 4).most, 4u * (1 + 2 + 1 + 4 + 4));
}

TEST(ConnectionRoomDeathTest, TheLimitIsRaisedForAllRanksAndSaid) {
  EXPECT_EXIT(
      {
        set_log_level(LogLevel::kInfo);
        limit(1024, 1 << 14);
        make_connection_room("small", 8, connections_of(8, 1, 1));
        if (descriptor_use().soft != 1024) std::exit(1);
        make_connection_room("large", 1024, connections_of(1024, 1, 1));
        if (descriptor_use().soft < 5 * 1023) std::exit(2);
        const uint64_t raised = descriptor_use().soft;
        make_connection_room("again", 1024, connections_of(1024, 1, 1));
        std::exit(descriptor_use().soft == raised ? 0 : 3);
      },
      testing::ExitedWithCode(0),
      "^torch-mcast.[0-9]+. info: group 'large': the limit of descriptors is raised from 1024 to "
      "5[0-9]+\n$");
}

TEST(ConnectionRoomDeathTest, WhereReductionsHaveNoRoomItWarnsWithTheNumbers) {
  EXPECT_EXIT(
      {
        limit(512, 800);
        make_connection_room("large", 1024, connections_of(1024, 1, 1));
        std::exit(descriptor_use().soft == 800 ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "warn: group 'large' of 1024 ranks: a reduction needs 1023 connections, but there "
      "are descriptors for only 7[0-9]+: .* the limit is 800 .hard limit 800.; raise it");
  EXPECT_EXIT(
      {
        limit(800, 800);  // enough for reductions: no warning
        make_connection_room("medium", 500, connections_of(500, 1, 1));
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace mcast
