// Connections without any proof at the listeners of daemons. The time does not advance here, so no
// outcome depends on a limit.
#include "aggregation/server/admission_listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "base/half_open_rules.h"
#include "base/socket_address.h"
#include "wire/record_stream.h"

namespace mcast::test {
namespace {

using service::AdmissionListener;
using service::LinkId;

constexpr HalfOpenRules kRules{8, 2, 4};

TEST(HalfOpenRules, AStrangerDisplacesTheOldestOfItsOwn) {
  std::vector<HalfOpenSeat<uint32_t>> seats{{1, false, 20}, {1, false, 10}, {2, false, 5}};
  EXPECT_EQ(kRules.displaced(seats, 1, false), 1u);
  EXPECT_EQ(kRules.displaced(seats, 2, false), std::nullopt);
  EXPECT_EQ(kRules.displaced(seats, 1, true), std::nullopt) << "a known one is not counted so";
}

TEST(HalfOpenRules, StrangersTogetherLeaveHalfToKnownSources) {
  std::vector<HalfOpenSeat<uint32_t>> seats{
      {1, false, 4}, {2, false, 3}, {3, false, 2}, {3, false, 1}};
  EXPECT_EQ(kRules.displaced(seats, 9, false), 3u) << "the oldest of the one with most";
  EXPECT_EQ(kRules.displaced(seats, 9, true), std::nullopt);
  for (Nanos at = 10; at < 14; at++) seats.push_back({9, true, at});
  EXPECT_EQ(kRules.displaced(seats, 9, true), 4u) << "none is left";
  EXPECT_EQ(kRules.displaced(seats, 1, false), 3u);
}

class Guests final : public service::Visitor {
 public:
  bool knows(const IpAddress& host) const override { return host == known; }
  void on_record(LinkId, const IpAddress& host, std::string_view, Nanos) override {
    said.push_back(host);
  }
  void on_link_end(LinkId, bool nonsense) override { ended += nonsense ? 1 : 0; }
  IpAddress known;
  size_t ended = 0;
  std::vector<IpAddress> said;
};

class AdmissionListenerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(listener_.open("127.0.0.1", 0).ok()); }
  Fd connect_from(uint32_t host) {
    Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(bind_to(fd.get(), {IpAddress::v4(host), 0}), 0);
    EXPECT_EQ(connect_to(fd.get(), listener_.address()), 0);
    turn();
    return fd;
  }
  void turn() {
    std::vector<pollfd> list;
    listener_.watch(list);
    (void)::poll(list.data(), list.size(), 1);
    listener_.serve(list, kSecond, guests_);
  }
  // Returns true if the listener receives the host's record.
  bool heard(uint32_t host) {
    const Fd fd = connect_from(host);
    const std::string bytes = wire::framed("hello");
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    const size_t before = guests_.said.size();
    for (int i = 0; i < 1000 && guests_.said.size() == before; i++) turn();
    return guests_.said.size() > before && guests_.said.back() == IpAddress::v4(host);
  }

  static constexpr uint32_t kStranger = INADDR_LOOPBACK + 1, kHost = INADDR_LOOPBACK + 2;
  Guests guests_;
  AdmissionListener listener_;
};

TEST_F(AdmissionListenerTest, OneHostsIdleConnectionsKeepNobodyOut) {
  std::vector<Fd> idle;
  for (int i = 0; i < 260; i++) idle.push_back(connect_from(kStranger));
  EXPECT_LE(listener_.links(), AdmissionListener::kRules.per_stranger);
  EXPECT_TRUE(heard(kHost));
  EXPECT_TRUE(heard(kStranger)) << "it has its share";
  EXPECT_GE(guests_.ended, 260 - AdmissionListener::kRules.per_stranger) << "whose end is told";
}

// Without a host it listens over both versions of IP, and tells IPv4 addresses as such.
TEST(DoorOfAllAddresses, TakesBothVersions) {
  Guests guests;
  AdmissionListener listener;
  ASSERT_TRUE(listener.open("", 0).ok());
  EXPECT_FALSE(listener.address().address.known());
  std::vector<IpAddress> expected;
  for (const char* const at : {"127.0.0.1", "::1"}) {
    const IpAddress address = *IpAddress::parse(at);
    const Fd fd(::socket(family_of(address), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect_to(fd.get(), {address, listener.address().port}), 0) << at;
    const std::string bytes = wire::framed("hello");
    ASSERT_GT(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    expected.push_back(address);
    for (int i = 0; i < 1000 && guests.said.size() < expected.size(); i++) {
      std::vector<pollfd> list;
      listener.watch(list);
      (void)::poll(list.data(), list.size(), 1);
      listener.serve(list, kSecond, guests);
    }
  }
  EXPECT_EQ(guests.said, expected);
}

TEST_F(AdmissionListenerTest, ManyHostsIdleConnectionsLeaveHalfToKnownHosts) {
  std::vector<Fd> idle;
  for (uint32_t i = 0; i < 260; i++) idle.push_back(connect_from(kHost + 1 + i % 200));
  EXPECT_LE(listener_.links(), AdmissionListener::kRules.strangers);
  guests_.known = IpAddress::v4(kHost);
  std::vector<Fd> known;
  for (size_t i = 0; i < AdmissionListener::kMostAsking / 2; i++)
    known.push_back(connect_from(kHost));
  EXPECT_EQ(guests_.ended, 260 - AdmissionListener::kRules.strangers)
      << "none had to go for a known one";
  EXPECT_TRUE(heard(kHost));
}

}  // namespace
}  // namespace mcast::test
