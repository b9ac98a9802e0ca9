// Threads of the library: signals do not reach them, they have a name, and the thread that starts
// one keeps its signal mask.
#include "base/signals_blocked.h"

#include <gtest/gtest.h>

#include <string>

namespace mcast::test {
namespace {

sigset_t blocked_here() {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, nullptr, &set);
  return set;
}

TEST(NamedThread, TakesNoSignalsAndHasAName) {
  const sigset_t before = blocked_here();
  ASSERT_EQ(sigismember(&before, SIGUSR1), 0);
  std::string name(16, '\0');
  sigset_t inside{};
  named_thread("mcast-a-rather-long-name", [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    inside = blocked_here();
  }).join();
  EXPECT_STREQ(name.c_str(), "mcast-a-rather-");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    EXPECT_EQ(sigismember(&inside, signal), 1) << signal;
    const sigset_t after = blocked_here();
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

}  // namespace
}  // namespace mcast::test
