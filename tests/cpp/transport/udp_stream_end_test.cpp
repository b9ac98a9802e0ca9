// Particulars of TCP streams at their limits and their end: exhausted descriptors, crossing
// connections, goodbyes, and a fork.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/descriptors.h"
#include "transport/udp_stream_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

// Uses up all but `free` of the descriptors below the soft limit, beyond which `more` may be
// opened. Must run in a process of its own, since a lowered hard limit stays low.
void leave_descriptors(size_t free, uint64_t more) {
  const uint64_t soft = descriptor_use().open + 16;
  const struct rlimit limit { soft, soft + more };
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::exit(99);
  std::vector<int> taken;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
  for (size_t i = 0; i < free; i++) ::close(taken[i]);
}

TEST_F(UdpStreamTest, RunningOutOfDescriptorsIsReportedWithTheNumbers) {
  const auto connect_without = [&] {
    make_nodes(1);
    StreamAddress address{4711, "", 0};
    const Fd listener = raw_listen(address);
    leave_descriptors(0, 0);
    const std::string hard = std::to_string(descriptor_use().hard);
    node(0).send(node(0).st().add_peer(address), Channel::kControl, pattern(10, 1));
    if (!pump([&] { return stats(0).connect_retries >= 2; })) return 1;
    pass(world_.options.liveness_limit);
    if (!pump([&] { return !node(0).downs.empty(); })) return 2;
    const Status& why = node(0).downs[0].why;
    if (why.code() != Code::kResourceExhausted) return 3;
    const std::string numbers = "Too many open files; " + hard + " descriptors are open";
    if (why.message().find(numbers) == std::string::npos) return 4;
    return why.message().find("hard limit " + hard) == std::string::npos ? 5 : 0;
  };
  EXPECT_EXIT(std::exit(connect_without()), ::testing::ExitedWithCode(0),
              "cannot open another connection: Too many open files; [0-9]+ descriptors are open");
}

TEST_F(UdpStreamTest, TheSoftLimitOfDescriptorsIsRaisedWhenItIsReached) {
  EXPECT_EXIT(
      {
        make_nodes(2);
        // First none for the connector's socket, then none for the acceptor's.
        leave_descriptors(0, 400);
        node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
        if (!pump([&] { return !node(1).frames.empty(); })) std::exit(1);
        leave_descriptors(1, 40);
        node(0).send(introduce(0, 1), Channel::kReduce, pattern(10, 1));
        if (!pump([&] { return node(1).frames.size() == 2; })) std::exit(2);
        std::exit(stats(1).accept_errors == 0 ? 0 : 3);
      },
      ::testing::ExitedWithCode(0), "^$");
}

TEST_F(UdpStreamTest, AYieldWithoutAConnectionIsReported) {
  make_nodes(1);
  StreamAddress address{4711, "", 0};
  const Fd listener = raw_listen(address);
  node(0).send(node(0).st().add_peer(address), Channel::kControl, pattern(10, 1));
  settle(10);
  const Fd c(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(c.valid());
  ASSERT_TRUE(raw_send(c, encode(HelloAck{Verdict::kYield, Channel::kControl, 4711})));
  ASSERT_TRUE(pump([&] { return stats(0).yielded == 1; }));
  settle(10);
  EXPECT_TRUE(node(0).downs.empty());
  world_.shift += world_.options.liveness_limit;
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("never came"));
}

TEST_F(UdpStreamTest, AnAddressThatIsNoneIsReported) {
  make_nodes(1);
  const PeerId peer = node(0).st().add_peer({1, "not-an-address", 5});
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_THAT(node(0).downs[0].why.message(), HasSubstr("not-an-address"));
}

TEST_F(UdpStreamTest, OwnFramesBeyondTheLimitAreABugThatShows) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(kMaxControlFrame + 1, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_EQ(node(0).downs[0].why.code(), Code::kInternal);
}

TEST_F(UdpStreamTest, FramesAfterCloseAreDroppedAndCounted) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 1; }));
  ASSERT_TRUE(close(node(0)));
  node(0).send(peer, Channel::kControl, pattern(10, 2));
  settle(10);
  EXPECT_EQ(node(1).frames.size(), 1u);
  EXPECT_EQ(stats(0).frames_dropped, 1u);
}

TEST_F(UdpStreamTest, CloseBeforeTheConnectionStandsStillDelivers) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  introduce(1, 0);
  for (int i = 0; i < 20; ++i) node(0).send(peer, Channel::kRepair, pattern(50'000, 1));
  ASSERT_TRUE(close(node(0)));
  node(0).transport.reset();
  ASSERT_TRUE(pump([&] { return !node(1).downs.empty(); }));
  EXPECT_EQ(node(1).frames_on(Channel::kRepair), std::vector<Buffer>(20, pattern(50'000, 1)));
  EXPECT_TRUE(node(1).downs[0].graceful) << node(1).downs[0].why.to_string();
}

TEST_F(UdpStreamTest, ClosingSendsTheGoodbyeAndTheEndOfInput) {
  make_nodes(1);
  const Fd fd = accepted_peer(7);
  ASSERT_TRUE(close(node(0)));  // our endpoint lives on: only the goodbye ends it
  Buffer received;
  ASSERT_TRUE(closed(fd, &received));
  const auto goodbye = encode_prefix(kGoodbyeLength);
  EXPECT_EQ(received, to_buffer(goodbye));
}

TEST_F(UdpStreamTest, ALateConnectorFindsAClosingPeerGraceful) {
  make_nodes(2);
  ASSERT_TRUE(close(node(1)));
  node(0).send(introduce(0, 1), Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  EXPECT_TRUE(node(0).downs[0].graceful) << node(0).downs[0].why.to_string();
}

// Both Hellos are in flight before either side polls. The side with the lower uid keeps its
// connection, whichever side polls first.
TEST_F(UdpStreamTest, OneOfTwoCrossingConnectionsIsUsed) {
  for (size_t first : {0u, 1u, 0u, 1u, 0u, 1u}) {
    nodes_.clear();
    make_nodes(2);
    const PeerId at0 = introduce(0, 1), at1 = introduce(1, 0);
    node(0).send(at0, Channel::kControl, pattern(10, 1));
    node(1).send(at1, Channel::kControl, pattern(10, 2));
    node(first).st().poll(node(first), world_.now());
    node(1 - first).st().poll(node(1 - first), world_.now());
    ASSERT_TRUE(pump([&] { return node(0).frames.size() + node(1).frames.size() == 2; }));
    settle(5);
    EXPECT_EQ(stats(0).connections_opened, 1u);
    EXPECT_EQ(stats(1).connections_opened, 1u);
    EXPECT_EQ(stats(0).connect_retries + stats(1).connect_retries, 0u);
    EXPECT_EQ(node(0).frames_on(Channel::kControl), std::vector<Buffer>{pattern(10, 2)});
    EXPECT_EQ(node(1).frames_on(Channel::kControl), std::vector<Buffer>{pattern(10, 1)});
  }
}

TEST_F(UdpStreamTest, AForkedChildDoesNotHoldConnectionsOpen) {
  make_nodes(2);
  const PeerId peer = introduce(0, 1);
  node(0).send(peer, Channel::kControl, pattern(10, 1));
  ASSERT_TRUE(pump([&] { return node(1).frames.size() == 1; }));
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // lives like a DataLoader worker until the pipe closes
    node(0).transport->abandon_after_fork();
    node(1).transport->abandon_after_fork();
    ::close(pipe_ends[1]);
    char byte;
    (void)!::read(pipe_ends[0], &byte, 1);
    ::_exit(0);
  }
  // The parent's endpoints continue to work, and so do their epoll instances.
  node(0).send(peer, Channel::kControl, pattern(10, 2));
  EXPECT_TRUE(pump([&] { return node(1).frames.size() == 2; }));
  node(1).transport.reset();
  EXPECT_TRUE(pump([&] { return !node(0).downs.empty(); }));
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mcast::testing
