// Tests how support/main.cpp treats a skipped test: this program runs itself with a test that
// skips.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace mcast::test {
namespace {

TEST(Skips, DISABLED_ThisOneIsSkipped) { GTEST_SKIP() << "as the other test wants it"; }
TEST(Skips, DISABLED_ThisOneIsNot) {}

// Runs this program with `filter` and MCAST_CI set to `ci` (null: not set). Returns its exit
// status.
int run_self(const char* filter, const char* ci) {
  const pid_t child = fork();
  if (child == 0) {
    for (const char* name : {"MCAST_CI", "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_OUTPUT",
                             "MCAST_TEST_REACH"}) {
      unsetenv(name);
    }
    if (ci != nullptr) setenv("MCAST_CI", ci, 1);
    (void)!freopen("/dev/null", "w", stdout);
    const std::string tests = std::string("--gtest_filter=") + filter;
    execl("/proc/self/exe", "mcast_test_base", tests.c_str(), "--gtest_also_run_disabled_tests",
          nullptr);
    _exit(99);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Skips, FailInContinuousIntegrationOnly) {
  EXPECT_EQ(run_self("Skips.DISABLED_ThisOneIsSkipped", "1"), 1);
  EXPECT_EQ(run_self("Skips.DISABLED_*", "1"), 1);
  EXPECT_EQ(run_self("Skips.DISABLED_ThisOneIsNot", "1"), 0);
  EXPECT_EQ(run_self("Skips.DISABLED_*", "0"), 0);
  EXPECT_EQ(run_self("Skips.DISABLED_*", ""), 0);
  EXPECT_EQ(run_self("Skips.DISABLED_*", nullptr), 0);
}

}  // namespace
}  // namespace mcast::test
