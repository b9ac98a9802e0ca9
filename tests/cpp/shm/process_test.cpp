// Tests whether another process lives, when the kernel interrupts or forbids the check. seccomp
// filters set the results of the system calls, in forked children that end with their test.
#include "shm/process.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

namespace mcast::test {
namespace {

// Makes these system calls of this process fail with `error` from now on.
bool forbid(const std::vector<uint32_t>& calls, int error) {
  std::vector<sock_filter> filter{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const uint32_t call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<uint32_t>(error) & 0xffffu)));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

const std::vector<uint32_t> kPollCalls{
#ifdef SYS_poll
    SYS_poll,
#endif
    SYS_ppoll};

constexpr int kGood = 0, kBad = 1, kNoFilter = 2;

// Runs `body` in a forked child and returns its result.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A process that lives until it is ended.
class Other {
 public:
  Other() : pid_(::fork()) {
    if (pid_ > 0) return;
    for (;;) ::pause();
  }
  ~Other() { end(); }
  pid_t pid() const { return pid_; }
  // It is a zombie from then on, until reap().
  void kill() {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

TEST(PeerProcess, LivesUntilItsEndNotUntilItIsReaped) {
  Other other;
  PeerProcess process(other.pid());
  EXPECT_TRUE(process.alive());
  ::kill(other.pid(), SIGSTOP);
  EXPECT_TRUE(process.alive());
  other.kill();
  EXPECT_FALSE(process.alive());
  other.end();
  EXPECT_FALSE(process.alive());
}

// A profiler's signal or a child's end: the checking thread may handle one at any moment.
TEST(PeerProcess, ASignalWhileItIsAskedIsNotItsEnd) {
  Other other;
  const int outcome = in_child([&] {
    PeerProcess process(other.pid());
    if (!forbid(kPollCalls, EINTR)) return kNoFilter;
    for (int i = 0; i < 3; i++) {
      if (!process.alive()) return kBad;
    }
    return kGood;
  });
  if (outcome == kNoFilter) GTEST_SKIP() << "needs seccomp";
  EXPECT_EQ(outcome, kGood);
}

// Out of memory does not prove an end, and an end is still detected.
TEST(PeerProcess, WherePollFailsASignalShowsWhetherItLives) {
  const int outcome = in_child([] {
    Other other;
    PeerProcess process(other.pid());
    if (!forbid(kPollCalls, ENOMEM)) return kNoFilter;
    if (!process.alive()) return kBad;
    other.end();
    return process.alive() ? kBad : kGood;
  });
  if (outcome == kNoFilter) GTEST_SKIP() << "needs seccomp";
  EXPECT_EQ(outcome, kGood);
}

// Kernels before 5.3, and sandboxes that do not know the call.
TEST(PeerProcess, WithoutPidfdASignalShowsWhetherItLives) {
  for (const int error : {ENOSYS, EPERM}) {
    const int outcome = in_child([&] {
      if (!forbid({SYS_pidfd_open}, error)) return kNoFilter;
      Other other;
      PeerProcess process(other.pid());
      if (!process.alive()) return kBad;
      other.end();
      return process.alive() ? kBad : kGood;
    });
    if (outcome == kNoFilter) GTEST_SKIP() << "needs seccomp";
    EXPECT_EQ(outcome, kGood) << std::strerror(error);
  }
}

// Another user's process may not be signalled, but it exists.
TEST(PeerProcess, ProcessThatMayNotBeSignalledIsAlive) {
  Other other;
  const int outcome = in_child([&] {
    if (!forbid({SYS_pidfd_open, SYS_kill}, EPERM)) return kNoFilter;
    PeerProcess process(other.pid());
    return process.alive() ? kGood : kBad;
  });
  if (outcome == kNoFilter) GTEST_SKIP() << "needs seccomp";
  EXPECT_EQ(outcome, kGood);
}

}  // namespace
}  // namespace mcast::test
