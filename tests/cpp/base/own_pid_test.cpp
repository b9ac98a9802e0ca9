#include "base/own_pid.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mcast {
namespace {

// Forks `generations` deep. The exit status counts the processes with a wrong own_pid().
int wrong_below(int generations) {
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = own_pid() == ::getpid() ? 0 : 1;
    if (generations > 1) wrong += wrong_below(generations - 1);
    ::_exit(wrong);
  }
  int status = -1;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 100;
  return WEXITSTATUS(status);
}

TEST(OwnPid, IsThatOfThisProcess) {
  EXPECT_EQ(own_pid(), ::getpid());
  EXPECT_EQ(own_pid(), ::getpid());
}

TEST(OwnPid, ChildrenHaveTheirs) {
  ASSERT_EQ(own_pid(), ::getpid());
  EXPECT_EQ(wrong_below(3), 0);
  EXPECT_EQ(own_pid(), ::getpid());
}

}  // namespace
}  // namespace mcast
