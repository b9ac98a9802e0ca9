// A fork at every moment of a lane's work. The processor stops after each instruction, and a copy
// of the process is made that abandons the endpoint, as the child of a fork does.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "transport/transport_contract.h"
#include "transport/udp_world.h"

#ifdef __has_feature
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define MCAST_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MCAST_TEST_SANITIZED 1
#endif

#if defined(__x86_64__) && !defined(MCAST_TEST_SANITIZED)

namespace mcast::testing {
namespace {

Transport* g_transport = nullptr;
uint64_t g_moments = 0, g_failed = 0;

extern "C" char __executable_start, etext;  // set by the linker: this program's own code

// Does not call fork(), which would wait for the allocator's lock if the interrupted instruction
// holds it. Instructions in libraries are skipped: they change none of our state beyond their
// effect as a whole.
void fork_here(int, siginfo_t*, void* context) {
  const auto at =
      static_cast<uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  if (at < reinterpret_cast<uintptr_t>(&__executable_start) ||
      at >= reinterpret_cast<uintptr_t>(&etext)) {
    return;
  }
  ++g_moments;
  const long child = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    g_transport->abandon_after_fork();
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(static_cast<pid_t>(child), &status, 0) != child || status != 0) {
    ++g_failed;
  }
}

// Sets the processor's trap flag, without touching the area that the compiler may use below the
// stack pointer.
[[gnu::always_inline]] inline void step(bool on) {
  if (on) {
    asm volatile(
        "lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
            : "cc", "memory");
  } else {
    asm volatile(
        "lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
            : "cc", "memory");
  }
}

class ForkMomentTest : public TransportContract<UdpWorld> {
 protected:
  void SetUp() override {
    TransportContract<UdpWorld>::SetUp();
    struct sigaction handler {};
    handler.sa_sigaction = fork_here;
    handler.sa_flags = SA_SIGINFO;
    ::sigaction(SIGTRAP, &handler, &before_);
  }
  void TearDown() override {
    ::sigaction(SIGTRAP, &before_, nullptr);
    TransportContract<UdpWorld>::TearDown();
  }
  void poll_stepwise(Node& n) {
    g_transport = n.transport.get();
    step(true);
    n.st().poll(n, world_.now());
    step(false);
  }

 private:
  struct sigaction before_ {};
};

TEST_F(ForkMomentTest, AChildAbandonsAnEndpointWhoseConnectionsAreJustEnding) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  for (const Channel channel : {Channel::kControl, Channel::kRepair, Channel::kReduce}) {
    node(0).send(peer, channel, pattern(10, 1));
  }
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 3; }));
  node(1).transport.reset();
  while (node(0).downs.empty() && g_moments < 100'000) {
    node(0).transport->wait(kNever);  // for the end of a connection
    poll_stepwise(node(0));
  }
  EXPECT_FALSE(node(0).downs.empty());
  EXPECT_GT(g_moments, 1000u);
  EXPECT_EQ(g_failed, 0u) << "of " << g_moments;
}

}  // namespace
}  // namespace mcast::testing

#endif
