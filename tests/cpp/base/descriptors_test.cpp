#include "base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace mcast::test {
namespace {

// Each test has its own process, since a lowered hard limit stays low.
void limit(uint64_t soft, uint64_t hard) {
  const struct rlimit both { soft, hard };
  if (::setrlimit(RLIMIT_NOFILE, &both) != 0) std::_Exit(99);
}

TEST(DescriptorsDeathTest, TheSoftLimitIsRaisedAsFarAsIsNeeded) {
  EXPECT_EXIT(
      {
        const uint64_t open = descriptor_use().open;
        limit(open + 10, open + 1000);
        if (make_descriptor_room(5)) std::_Exit(1);  // there is room already
        if (!make_descriptor_room(100)) std::_Exit(2);
        if (descriptor_use().soft != open + 100) std::_Exit(3);
        if (make_descriptor_room(50)) std::_Exit(4);  // must not lower the limit
        std::vector<int> files(100);
        for (int& fd : files) {
          if ((fd = ::dup(0)) < 0) std::_Exit(5);
        }
        if (descriptor_use().open != open + 100) std::_Exit(6);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(DescriptorsDeathTest, TheHardLimitIsTheEnd) {
  EXPECT_EXIT(
      {
        const uint64_t open = descriptor_use().open;
        limit(open + 10, open + 20);
        if (!make_descriptor_room(100) || make_descriptor_room(100)) std::_Exit(1);
        if (descriptor_use().soft != open + 20) std::_Exit(2);
        const std::string text = descriptor_text();
        if (text.find(std::to_string(open) + " descriptors are open") == std::string::npos ||
            text.find("hard limit " + std::to_string(open + 20)) == std::string::npos) {
          std::_Exit(3);
        }
        // With no descriptor left, /proc cannot be listed either.
        while (::dup(0) >= 0) {
        }
        if (descriptor_use().open != open + 20) std::_Exit(4);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mcast::test
