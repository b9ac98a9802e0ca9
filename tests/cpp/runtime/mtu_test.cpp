// The MTU of an interface is reduced while a group uses it. Datagrams of the agreed size continue
// in IP fragments, which the group counts. Uses a network namespace, and so a loopback interface,
// of its own.
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

constexpr int kNoNamespace = 77;

void set_loopback(int mtu) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_mtu = mtu;
  EXPECT_EQ(ioctl(fd, SIOCSIFMTU, &request), 0);
  request.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  EXPECT_EQ(ioctl(fd, SIOCSIFFLAGS, &request), 0);
  close(fd);
}

bool ranks_on_loopback() {
  const auto ends = run_ranks(2, 60, [](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, 2, store);
    if (!group || !work(*group, 200'000, 2)) return false;
    EXPECT_EQ(counter(*group, "fragmented"), 0u);
    if (rank == 1) set_loopback(1300);
    if (!barrier(*group).ok()) return false;
    const uint64_t before = counter(*group, "datagrams_sent");
    if (!work(*group, 200'000, 2) || !reduce_all_ways(*group, 20'000, 1)) return false;
    const uint64_t fragmented = counter(*group, "fragmented");
    EXPECT_GT(fragmented, 0u);
    // Small datagrams are not fragmented.
    EXPECT_LT(fragmented, counter(*group, "datagrams_sent") - before);
    EXPECT_EQ(counter(*group, "ring_bytes_sent"), 0u);
    if (!barrier(*group).ok()) return false;
    if (rank == 1) set_loopback(1500);
    if (!barrier(*group).ok() || !work(*group, 100, 2)) return false;
    const uint64_t until_now = counter(*group, "fragmented");
    if (!work(*group, 200'000, 2)) return false;
    EXPECT_EQ(counter(*group, "fragmented"), until_now) << "they leave whole again";
    return true;
  });
  expect_all_good(ends);
  return !testing::Test::HasFailure();
}

TEST(Mtu, AGroupGoesOnInFragmentsAndCountsThem) {
  // The process that makes the namespace is the parent of the ranks in it.
  const auto ends = run_ranks(1, 120, [](Member, DirectoryStore&) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      _exit(kNoNamespace);
    }
    set_loopback(1500);
    return ranks_on_loopback();
  });
  if (ends[0].exit_code == kNoNamespace) {
    GTEST_SKIP() << "needs the right to make a network namespace";
  }
  expect_all_good(ends);
}

}  // namespace
}  // namespace mcast::test
