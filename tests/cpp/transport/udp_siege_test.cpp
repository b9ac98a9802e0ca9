// Attacks on the TCP endpoint by a stranger who knows nothing or has seen a Hello: silent
// connections, Hellos of thousands of unknown peers, sources that are not allowed. Their cost is
// bounded, and members can still connect.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/descriptors.h"
#include "transport/udp_stream_world.h"

namespace mcast::testing {
namespace {

constexpr uint32_t kOther = INADDR_LOOPBACK + 1, kThird = INADDR_LOOPBACK + 2;

class UdpSiege : public UdpStreamTest {
 protected:
  size_t refused(Cause cause, uint32_t address) {
    const auto& all = node(0).refusals;
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const auto& r) {
      return r.first == cause && r.second.address == IpAddress::v4(address);
    }));
  }
  StreamAddress at() { return node(0).st().address(true); }
  std::vector<Fd> silent(size_t count, uint32_t from) {
    std::vector<Fd> all;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(raw_connect(at(), from));
      poll_all();
    }
    settle(10);
    return all;
  }
  static bool ended(const Fd& fd) {
    std::byte byte;
    const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  static size_t open_of(const std::vector<Fd>& all) {
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [](const Fd& fd) { return !ended(fd); }));
  }
};

TEST_F(UdpSiege, ASilentSourceHasAFewPlacesAndItsOldestGoByReset) {
  make_nodes(1);
  const std::vector<Fd> all = silent(HalfOpen::kPerStranger + 5, kOther);
  std::byte byte;
  EXPECT_EQ(::recv(all[0].get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET) << "a FIN would leave the connection behind in the kernel";
  for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(ended(all[i]), i < 5) << i;
  EXPECT_EQ(stats(0).crowded_out, 5u);
  EXPECT_EQ(refused(Cause::crowded_out, kOther), 5u);
  expect_still_working();
}

TEST_F(UdpSiege, StrangersLeaveHalfOfThePlacesToMembers) {
  make_nodes(1);
  node(0).st().add_peer({4711, "127.0.0.1", 1});  // so 127.0.0.1 is a member's address
  std::vector<std::vector<Fd>> besiegers;
  for (uint32_t i = 0; i < 10; ++i) besiegers.push_back(silent(HalfOpen::kPerStranger, kOther + i));
  size_t held = 0;
  for (const auto& all : besiegers) held += open_of(all);
  EXPECT_EQ(held, HalfOpen::kStrangers);
  // More connections than a stranger may have. None of them is displaced, and no stranger's either.
  const std::vector<Fd> members = silent(HalfOpen::kPlaces - HalfOpen::kStrangers, INADDR_LOOPBACK);
  EXPECT_EQ(open_of(members), members.size());
  held = 0;
  for (const auto& all : besiegers) held += open_of(all);
  EXPECT_EQ(held, HalfOpen::kStrangers);
  // Beyond that, the host with most connections loses one, which is the members' host by now.
  const std::vector<Fd> more = silent(1, INADDR_LOOPBACK);
  EXPECT_EQ(open_of(more), 1u);
  EXPECT_EQ(open_of(members), members.size() - 1);
  expect_still_working();
}

TEST_F(UdpSiege, ASlowHelloIsGivenTwoSecondsAndNoMore) {
  make_nodes(1);
  const auto hello = encode(hello_to(0, 5));
  const Fd slow = raw_connect(at(), kOther);
  for (size_t i = 0; i + 1 < hello.size(); ++i) {
    ASSERT_TRUE(raw_send(slow, {&hello[i], 1}));
    poll_all();
  }
  world_.shift += HalfOpen::kPatience;
  EXPECT_TRUE(closed(slow));
  EXPECT_EQ(stats(0).hello_timeouts, 1u);
  EXPECT_EQ(refused(Cause::hello_timeouts, kOther), 1u);
  expect_still_working();
}

TEST_F(UdpSiege, AStrangerIsForgottenWithItsConnectionAndItsPlaceServesTheNext) {
  make_nodes(1);
  for (uint64_t source = 100; source < 140; ++source) {
    { const Fd fd = accepted_stranger(source); }
    ASSERT_TRUE(pump([&] { return node(0).strangers_gone.size() == source - 99; }));
  }
  EXPECT_TRUE(node(0).downs.empty()) << "nobody that was added";
  const std::vector<PeerId>& ids = node(0).strangers_gone;
  EXPECT_EQ(std::set<PeerId>(ids.begin(), ids.end()).size(), 1u) << "one place for all of them";
  // A stranger that returns is new; its earlier state is forgotten.
  const Fd again = accepted_stranger(100);
  EXPECT_TRUE(raw_send(again, encode_prefix(1)));
  const std::byte byte{1};
  EXPECT_TRUE(raw_send(again, {&byte, 1}));
  EXPECT_TRUE(pump([&] { return node(0).frames.size() == 1; }));
}

TEST_F(UdpSiege, AStrangerThatIsAddedIsOneNoMore) {
  make_nodes(1);
  Fd early = accepted_stranger(7);
  ASSERT_TRUE(raw_send(early, encode_prefix(1)));
  const std::byte byte{1};
  ASSERT_TRUE(raw_send(early, {&byte, 1}));
  ASSERT_TRUE(pump([&] { return node(0).frames.size() == 1; }));
  const PeerId id = node(0).st().add_peer({7, "127.0.0.1", 1});
  EXPECT_EQ(id, node(0).frames[0].peer) << "its frames are the member's";
  early.reset();
  ASSERT_TRUE(pump([&] { return node(0).downs.size() == 1; }));
  EXPECT_EQ(node(0).downs[0].peer, id);
  EXPECT_TRUE(node(0).strangers_gone.empty());
}

TEST_F(UdpSiege, AThousandStrangersAndThenTheGreediestGoes) {
  (void)make_descriptor_room(3 * Guests::kMost);
  make_nodes(1);
  std::vector<Fd> crowd;
  const Fd modest = [&] {
    Fd fd = raw_connect(at(), kThird);
    EXPECT_TRUE(raw_send(fd, encode(hello_to(0, 5))));
    settle(5);
    return fd;
  }();
  for (uint64_t i = 0; i < Guests::kMost + 10; ++i) {
    crowd.push_back(raw_connect(at(), kOther));
    ASSERT_TRUE(raw_send(crowd.back(), encode(hello_to(0, 1000 + i))));
    poll_all();
  }
  ASSERT_TRUE(pump([&] { return node(0).strangers_gone.size() >= 11; }));
  EXPECT_EQ(stats(0).crowded_out, 11u);
  const auto gone = [](const Fd& fd) {
    Buffer bytes(256);
    ssize_t got;
    while ((got = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  };
  EXPECT_FALSE(gone(modest)) << "it has one, the others' address a thousand";
  for (size_t i = 0; i < 11; ++i) EXPECT_TRUE(gone(crowd[i])) << i;
  EXPECT_FALSE(gone(crowd[11]));
  EXPECT_TRUE(node(0).downs.empty());
  crowd.clear();
  expect_still_working();
}

TEST_F(UdpSiege, ConnectionsFromOutsideOfAllowAreReset) {
  world_.options.allow = "10.99.0.0/16," + IpAddress::v4(kThird).text();
  make_nodes(1);
  const Fd stranger = raw_connect(at(), kOther);
  EXPECT_TRUE(closed(stranger));
  EXPECT_EQ(stats(0).not_allowed, 1u);
  EXPECT_EQ(refused(Cause::not_allowed, kOther), 1u);
  const Fd allowed = raw_connect(at(), kThird);
  ASSERT_TRUE(raw_send(allowed, encode(hello_to(0, 5))));
  std::byte ack[kHelloAckSize];
  EXPECT_TRUE(pump([&] {
    return ::recv(allowed.get(), ack, sizeof ack, MSG_DONTWAIT | MSG_PEEK) ==
           static_cast<ssize_t>(kHelloAckSize);
  }));
  expect_still_working();  // from 127.0.0.1, which is always allowed
}

// The kernel filters these datagrams, so they cost this process nothing.
TEST_F(UdpSiege, DatagramsFromOutsideOfAllowNeverArrive) {
  world_.options.allow = "10.99.0.0/16," + IpAddress::v4(kThird).text();
  make_nodes(1);
  const MulticastAddress group = world_.address(1);
  ASSERT_TRUE(node(0).dg().join(group).ok());
  const auto send_from = [&](uint32_t from, const Buffer& bytes) {
    const Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind_to(fd.get(), {IpAddress::v4(from), 0}), 0);
    const in_addr lo{htonl(INADDR_LOOPBACK)};
    ASSERT_EQ(::setsockopt(fd.get(), IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof lo), 0);
    const SocketAddress to(multicast_endpoint(group, false));
    ASSERT_EQ(::sendto(fd.get(), bytes.data(), bytes.size(), 0, to.get(), to.size()),
              static_cast<ssize_t>(bytes.size()));
  };
  for (uint64_t i = 0; i < 20; ++i) send_from(kOther, pattern(100, i));
  send_from(kThird, pattern(200, 1));
  send_from(INADDR_LOOPBACK, pattern(300, 1));
  ASSERT_TRUE(pump([&] { return node(0).datagrams.size() == 2; }));
  EXPECT_EQ(node(0).datagrams[0], pattern(200, 1));
  EXPECT_EQ(node(0).datagrams[1], pattern(300, 1));
}

// The verdict of a program on a packet from this address, by the three instructions that it has.
bool run(const std::vector<sock_filter>& program, const IpAddress& from) {
  const size_t source = from.is_v4() ? 12 : 8, skipped = from.is_v4() ? 12 : 0;
  uint32_t accumulator = 0;
  for (size_t at = 0;; at++) {
    const sock_filter& step = program.at(at);
    if (step.code == (BPF_LD | BPF_W | BPF_ABS)) {
      const size_t offset = step.k - static_cast<uint32_t>(SKF_NET_OFF) - source + skipped;
      accumulator = 0;
      for (size_t i = offset; i < offset + 4; i++)
        accumulator = accumulator << 8 | from.bytes.at(i);
    } else if (step.code == (BPF_ALU | BPF_AND | BPF_K)) {
      accumulator &= step.k;
    } else if (step.code == (BPF_JMP | BPF_JEQ | BPF_K)) {
      at += accumulator == step.k ? step.jt : step.jf;
    } else {
      return step.k != 0;
    }
  }
}

TEST(SourceFilterTest, ProgramMatchesTheList) {
  EXPECT_FALSE(SourceFilter().restricts());
  EXPECT_TRUE(SourceFilter().passes(IpAddress::v4(1)));
  Interface eth;
  eth.addresses = {IpAddress::v4(0xc0a80105), *IpAddress::parse("fd00:9::5")};
  const auto filter =
      SourceFilter::make("10.1.0.0/16,10.2.3.4,fd00:1::/64,fd00:2::/36", std::span(&eth, 1));
  ASSERT_TRUE(filter.ok());
  for (const auto& [address, passes] : {std::pair{0x0a01ffffu, true},
                                        {0x0a020304u, true},
                                        {0x0a020305u, false},
                                        {uint32_t{INADDR_LOOPBACK}, true},
                                        {uint32_t{INADDR_LOOPBACK} + 1, false},
                                        {0xc0a80105u, true},
                                        {0xc0a80106u, false}}) {
    const IpAddress one = IpAddress::v4(address);
    EXPECT_EQ(filter->passes(one), passes) << one.text();
    EXPECT_EQ(run(filter->program(false), one), passes) << one.text();
  }
  for (const auto& [text, passes] : {std::pair{"fd00:1::7", true},
                                     {"fd00:1:0:1::7", false},
                                     {"fd00:2:fff::1", true},
                                     {"fd00:2:1000::1", false},
                                     {"::1", true},
                                     {"::2", false},
                                     {"fd00:9::5", true},
                                     {"fd00:9::6", false}}) {
    const IpAddress one = *IpAddress::parse(text);
    EXPECT_EQ(filter->passes(one), passes) << text;
    EXPECT_EQ(run(filter->program(true), one), passes) << text;
  }
  EXPECT_EQ(filter->program(false).size(), 4u + 3 * 3 + 1);
  EXPECT_FALSE(SourceFilter::make("10.1.0.9/16", {}).ok());
}

}  // namespace
}  // namespace mcast::testing
