// The interface's MTU changes under open sockets. Each test runs in a forked child with its own
// network namespace, and so its own loopback interface.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/log.h"
#include "transport/transport_contract.h"
#include "transport/udp_world.h"

namespace mcast::testing {
namespace {

constexpr int kNoNamespace = 77;

void set_up_loopback(int mtu) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_mtu = mtu;
  EXPECT_EQ(::ioctl(fd, SIOCSIFMTU, &request), 0);
  request.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  EXPECT_EQ(::ioctl(fd, SIOCSIFFLAGS, &request), 0);
  ::close(fd);
}

std::atomic<int> g_shrunk{0}, g_whole{0};

void count_logs(int, const char* line) {
  const std::string text(line);
  if (text.find("its MTU is now 1000, it was 1500") != std::string::npos) ++g_shrunk;
  if (text.find("whole again") != std::string::npos) ++g_whole;
}

class UdpMtuTest : public TransportContract<UdpWorld> {
 protected:
  const UdpStats& stats() {
    return static_cast<UdpTransport&>(*node(0).transport).datagram_stats();
  }

  void in_namespace(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        ::_exit(kNoNamespace);
      }
      ::alarm(60);
      set_log_level(LogLevel::kInfo);
      set_log_sink(count_logs);
      body();
      ::fflush(nullptr);
      ::_exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespace) {
      GTEST_SKIP() << "needs the right to make a network namespace";
    }
    EXPECT_EQ(status, 0);
  }
  // Sends `count` datagrams and expects them unchanged at the other node.
  void deliver(size_t count, size_t size) {
    std::vector<Buffer> sent;
    for (size_t i = 0; i < count; ++i) {
      sent.push_back(pattern(size, i));
      EXPECT_TRUE(send_datagram(node(0), world_.address(0), sent.back()));
    }
    EXPECT_TRUE(flush(node(0)));
    EXPECT_TRUE(pump([&] { return node(1).datagrams.size() == sent.size(); }))
        << node(1).datagrams.size() << " of " << count << " datagrams of " << size << " bytes";
    EXPECT_EQ(node(1).datagrams, sent);
    node(1).datagrams.clear();
  }
};

TEST_F(UdpMtuTest, DatagramsOfTheAgreedSizeGoOnInFragments) {
  in_namespace([&] {
    set_up_loopback(1500);
    make_nodes(2);
    ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
    deliver(46, 1400);
    EXPECT_EQ(stats().send_calls, 1u);
    EXPECT_EQ(node(0).dg().fragmented(), 0u);

    set_up_loopback(1000);
    deliver(46, 1400);
    deliver(1, 1400);  // a single one is never segmented
    EXPECT_EQ(node(0).dg().fragmented(), 47u);
    EXPECT_EQ(stats().dropped_datagrams, 0u);
    EXPECT_EQ(g_shrunk, 1);  // once for any number of datagrams

    // The kernel did not refuse segmentation.
    EXPECT_TRUE(stats().gso);
    EXPECT_EQ(stats().gso_fallbacks, 0u);
    const uint64_t before = stats().send_calls;
    deliver(64, 900);
    EXPECT_EQ(stats().send_calls, before + 1);
    EXPECT_EQ(node(0).dg().fragmented(), 47u);

    set_up_loopback(1500);
    deliver(46, 1400);
    EXPECT_EQ(stats().send_calls, before + 2);
    EXPECT_EQ(node(0).dg().fragmented(), 47u);
    EXPECT_EQ(g_whole, 1);
  });
}

TEST_F(UdpMtuTest, WithoutSegmentationDatagramsGoOnInFragmentsToo) {
  in_namespace([&] {
    set_up_loopback(1500);
    world_.options.gso = world_.options.gro = false;
    make_nodes(2);
    ASSERT_TRUE(node(1).dg().join(world_.address(0)).ok());
    set_up_loopback(1000);
    deliver(20, 1400);
    EXPECT_EQ(node(0).dg().fragmented(), 20u);
    set_up_loopback(1500);
    deliver(20, 1400);
    EXPECT_EQ(node(0).dg().fragmented(), 20u);
  });
}

}  // namespace
}  // namespace mcast::testing
