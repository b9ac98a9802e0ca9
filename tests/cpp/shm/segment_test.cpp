// Shared memory and its futexes within one process.
#include "shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "shm/futex.h"

namespace mcast::test {
namespace {

TEST(Segment, IsMappedTwiceAndZeroed) {
  auto made = Segment::create("mcast-test", 8192);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  auto found = Segment::attach(::getpid(), made->fd(), 8192);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  ASSERT_NE(found->data(), made->data());
  EXPECT_EQ(found->data()[8191], std::byte{0});
  made->data()[8191] = std::byte{9};
  EXPECT_EQ(found->data()[8191], std::byte{9});
  made->close_fd();
  EXPECT_EQ(made->fd(), -1);
  EXPECT_EQ(made->data()[8191], std::byte{9}) << "the mapping stays";
}

TEST(Segment, OnlyTheAnnouncedSegmentIsMapped) {
  auto made = Segment::create("mcast-test", 8192);
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(Segment::attach(::getpid(), made->fd(), 4096).ok());
  EXPECT_NE(::ftruncate(made->fd(), 4096), 0) << "it is sealed";
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_FALSE(Segment::attach(::getpid(), null, 0).ok());
  ::close(null);
}

// A file that can still shrink would turn reads into SIGBUS; one that can grow has no reliable
// size.
TEST(Segment, UnsealedFileIsNotMapped) {
  const auto file = [](int seals) {
    const int fd = ::memfd_create("mcast-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(::ftruncate(fd, 8192), 0);
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    return Fd(fd);
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, kAll}) {
    const auto mapped = Segment::adopt(file(kAll & ~missing), 8192, "an arena");
    EXPECT_FALSE(mapped.ok()) << missing;
  }
  EXPECT_TRUE(Segment::adopt(file(kAll), 8192, "an arena").ok());
}

TEST(Futex, ARingWakesWhoSleepsAndNoRingIsLost) {
  std::atomic<uint32_t> bell{0};
  futex_wait(bell, 1, kNever);  // not its value
  futex_wait(bell, 0, kMilli);
  std::thread sleeper([&] {
    while (bell.load() == 0) futex_wait(bell, 0, kNever);
  });
  ring(bell);
  sleeper.join();
  EXPECT_EQ(bell.load(), 1u);
}

}  // namespace
}  // namespace mcast::test
