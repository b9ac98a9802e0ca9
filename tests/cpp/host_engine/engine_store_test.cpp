// A job's store through engines. Two engines of one host stand for the engines of two hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/socket_address.h"
#include "engine_process.h"
#include "host_engine/client/store_client.h"
#include "host_engine/server/store_server.h"
#include "transport/udp/socket.h"

namespace mcast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using wire::StoreOp;

// Returns a port that is free at this moment.
uint16_t free_port() {
  auto server = service::StoreServer::start(0);
  EXPECT_TRUE(server.ok()) << server.status().to_string();
  return (*server)->port();
}

service::HostEngineOptions with_stores(uint16_t port) {
  service::HostEngineOptions options;
  options.guardian = false;
  options.goodbye = 0;
  options.store_port = port;
  return options;
}

class EngineStoreTest : public testing::Test {
 protected:
  std::unique_ptr<StoreClient> connect(const EngineProcess& engine,
                                       const std::string& name = "job") {
    auto made = StoreClient::connect({engine.path(), "127.0.0.1", port_, name}, 20 * kSecond);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(made).value() : nullptr;
  }
  static std::vector<std::string> done(StoreClient& client, StoreOp op,
                                       const std::vector<std::string>& parts) {
    auto answer = client.ask({op, parts}, nullptr);
    EXPECT_TRUE(answer.ok()) << answer.status().to_string();
    return answer.ok() ? *answer : std::vector<std::string>{};
  }

  const uint16_t port_ = free_port();
};

TEST_F(EngineStoreTest, RanksOfTwoEnginesShareOne) {
  EngineProcess first(with_stores(port_)), second(with_stores(port_));  // second waits for it
  auto a = connect(first), b = connect(second), other = connect(second, "another");
  ASSERT_TRUE(a && b && other);
  done(*a, StoreOp::kSet, {"k", std::string(size_t{3} << 20, 'v')});
  EXPECT_EQ(done(*b, StoreOp::kGet, {"0", "k"}).at(0).size(), size_t{3} << 20);
  EXPECT_THAT(done(*other, StoreOp::kCheck, {"k"}), ElementsAre("0"));
  std::thread later([&] { done(*a, StoreOp::kAdd, {"n", "4"}); });
  EXPECT_THAT(done(*b, StoreOp::kGet, {"20000", "n"}), ElementsAre("4"));
  later.join();
  const auto late = b->ask({StoreOp::kWait, {"50", "k", "x", "y"}}, nullptr);
  EXPECT_EQ(late.status().code(), Code::kTimeout);
  EXPECT_THAT(late.status().message(), HasSubstr("nobody has set x, y"));
  EXPECT_THAT(done(*b, StoreOp::kCheck, {"k"}), ElementsAre("1")) << "it goes on";
}

TEST_F(EngineStoreTest, MissingEngineIsNamedAndWaitedFor) {
  service::HostEngineOptions options = with_stores(port_);
  options.peers = *parse_networks("240.0.0.1", 1);
  EngineProcess engine(options);
  const uint16_t nobody = free_port();
  auto wrong = StoreClient::connect({engine.path(), "127.0.0.1", nobody, "job"}, 5 * kSecond);
  EXPECT_THAT(wrong.status().message(), HasSubstr("(--store-port)"));
  // No host has addresses of that class.
  auto far = StoreClient::connect({engine.path(), "240.0.0.1", port_, "job"}, 300 * kMilli);
  EXPECT_THAT(far.status().message(), HasSubstr("is an engine with --store-port"));
  auto out = StoreClient::connect({engine.path(), "240.0.0.2", port_, "job"}, 5 * kSecond);
  EXPECT_THAT(out.status().message(), HasSubstr("the engine does not connect to 240.0.0.2:"));
  auto none =
      StoreClient::connect({"/nonexistent/engine.sock", "127.0.0.1", port_, "job"}, 200 * kMilli);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
}

// Refused at once, although nothing limits the wait for an engine.
TEST_F(EngineStoreTest, AnotherUsersEngineIsRefused) {
  EngineProcess engine(with_stores(port_));
  const std::string other = std::to_string(geteuid() + 7);
  const auto refused = StoreClient::connect({engine.path(), "127.0.0.1", port_, "job", other}, 0);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("store of the job through the engine of this host: user "));
  const auto unknown =
      StoreClient::connect({engine.path(), "127.0.0.1", port_, "job", "no-such-user"}, 0);
  EXPECT_THAT(unknown.status().message(), HasSubstr("this host has no user"));
  const std::string own = std::to_string(geteuid());
  EXPECT_TRUE(StoreClient::connect({engine.path(), "127.0.0.1", port_, "job", own}, kSecond).ok());
}

TEST_F(EngineStoreTest, AnEngineThatEndsIsNamed) {
  EngineProcess near(with_stores(0 + port_));
  auto client = connect(near);
  ASSERT_TRUE(client);
  std::thread killer([&] { near.signal(SIGKILL); });
  const auto answer = client->ask({StoreOp::kWait, {"0", "never"}}, nullptr);
  killer.join();
  EXPECT_EQ(answer.status().code(), Code::kPeerLost) << answer.status().to_string();
  EXPECT_THAT(answer.status().message(), HasSubstr("the connection has ended"));
  EXPECT_FALSE(client->ask({StoreOp::kCount, {}}, nullptr).ok()) << "and it stays so";
  EXPECT_EQ(near.end(SIGTERM), -SIGKILL);
}

TEST_F(EngineStoreTest, AnInterruptEndsAWait) {
  EngineProcess engine(with_stores(port_));
  auto client = connect(engine);
  ASSERT_TRUE(client);
  int asked = 0;
  const auto answer = client->ask({StoreOp::kWait, {"0", "never"}}, [&] { return ++asked == 2; });
  EXPECT_EQ(answer.status().code(), Code::kAborted);
  auto again = connect(engine);
  EXPECT_THAT(done(*again, StoreOp::kCount, {}), ElementsAre("0"));
}

// A job is not affected, whatever strangers send to either socket.
TEST_F(EngineStoreTest, StrangersHarmNobody) {
  EngineProcess engine(with_stores(port_));
  auto client = connect(engine);
  ASSERT_TRUE(client);
  const std::string open = wire::bytes_of({StoreOp::kOpen, {"127.0.0.1", "1", "job", "0"}});
  for (const std::string& bytes :
       {std::string(1000, 'x'), std::string("\xff\xff\xff\xff", 4), open.substr(0, 7), open,
        open + wire::bytes_of({StoreOp::kAdd, {"n", "1"}}),  // two requests at once
        wire::bytes_of({StoreOp::kSet, {"a", "b"}}), std::string()}) {
    auto fd = connect_to(engine.path() + ".store", SOCK_STREAM);
    ASSERT_TRUE(fd.ok());
    EXPECT_EQ(send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    done(*client, StoreOp::kAdd, {"n", "1"});
  }
  EXPECT_THAT(done(*client, StoreOp::kGet, {"0", "n"}), ElementsAre("7"));
}

// A connection may have one pending request. More would be served one after the other in one poll.
TEST(StoreServerTest, PipelinedRequestEndsTheConnection) {
  auto server = service::StoreServer::start(0);
  ASSERT_TRUE(server.ok());
  const std::string open = wire::bytes_of({StoreOp::kOpen, {"h", "1", "job", "0"}});
  const std::string count = wire::bytes_of({StoreOp::kCount, {}});
  for (const bool ahead : {false, true}) {
    Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect_to(fd.get(), {IpAddress::v4(INADDR_LOOPBACK), (*server)->port()}), 0);
    const std::string bytes = open + (ahead ? count : "");
    ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    char piece[100];
    const ssize_t got = recv(fd.get(), piece, sizeof piece, 0);  // a reply, or the end
    EXPECT_EQ(got > 0, !ahead);
  }
}

// A client of the port that sends arbitrary bytes.
class StoreVisitor {
 public:
  // `from`: the last byte of its loopback address.
  StoreVisitor(uint16_t port, uint8_t from) {
    EXPECT_EQ(bind_to(fd_.get(), {IpAddress::v4(INADDR_LOOPBACK - 1 + from), 0}), 0);
    EXPECT_EQ(connect_to(fd_.get(), {IpAddress::v4(INADDR_LOOPBACK), port}), 0);
  }
  bool send_bytes(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  std::optional<wire::StoreRecord> receive() {
    char piece[65536];
    for (;;) {
      if (auto record = in_.next()) return record;
      const ssize_t got = recv(fd_.get(), piece, sizeof piece, 0);
      if (got <= 0) return std::nullopt;
      in_.feed({piece, static_cast<size_t>(got)});
    }
  }
  std::optional<wire::StoreRecord> ask(const wire::StoreRecord& record) {
    if (!send_bytes(wire::bytes_of(record))) return std::nullopt;
    return receive();
  }
  std::optional<wire::StoreRecord> open(const std::string& name) {
    return ask({StoreOp::kOpen, {"h", "1", name, "0"}});
  }

 private:
  Fd fd_{::socket(AF_INET, SOCK_STREAM, 0)};
  wire::StoreReader in_;
};

// One value of 1 MiB and one request that names it as often as a record can: the reply would have
// 128 GiB.
TEST(StoreServerTest, ALargeAnswerIsRefusedAndOthersAreServed) {
  auto server = service::StoreServer::start(0);
  ASSERT_TRUE(server.ok());
  StoreVisitor stranger((*server)->port(), 2), rank((*server)->port(), 3);
  ASSERT_TRUE(stranger.open("stranger"));
  ASSERT_TRUE(stranger.ask({StoreOp::kSet, {"k", std::string(size_t{1} << 20, 'v')}}));
  std::vector<std::string> often(wire::kMostStoreParts, "k");
  often[0] = "0";
  const auto answer = stranger.ask({StoreOp::kGet, often});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->op, StoreOp::kFailed);
  ASSERT_TRUE(rank.open("job"));
  EXPECT_THAT(rank.ask({StoreOp::kAdd, {"n", "4"}})->parts, ElementsAre("4"));
}

// Requests that never end: their memory is taken from their own host's share when they begin.
TEST(StoreServerTest, UnfinishedQuestionsLeaveRoomForOtherHosts) {
  auto server = service::StoreServer::start(0);
  ASSERT_TRUE(server.ok());
  std::string begun = wire::bytes_of({StoreOp::kSet, {"k", std::string(size_t{15} << 20, 'v')}});
  const std::string whole = begun;
  begun.resize(1000);
  std::vector<std::unique_ptr<StoreVisitor>> strangers;
  for (int i = 0; i < 20; i++) {
    strangers.push_back(std::make_unique<StoreVisitor>((*server)->port(), 2));
    ASSERT_TRUE(strangers.back()->open("stranger"));
    ASSERT_TRUE(strangers.back()->send_bytes(begun));
  }
  // Another one of theirs is refused with the reason when its request has arrived.
  StoreVisitor late((*server)->port(), 2);
  ASSERT_TRUE(late.open("stranger"));
  const auto refused = late.ask({StoreOp::kSet, {"k", std::string(size_t{15} << 20, 'v')}});
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->parts[0], HasSubstr("is used up"));
  EXPECT_THAT(late.ask({StoreOp::kAdd, {"n", "1"}})->parts, ElementsAre("1")) << "it goes on";
  StoreVisitor rank((*server)->port(), 3);
  ASSERT_TRUE(rank.open("job"));
  ASSERT_TRUE(rank.send_bytes(whole));
  EXPECT_EQ(rank.receive()->op, StoreOp::kDone);
  EXPECT_EQ(rank.ask({StoreOp::kGet, {"0", "k"}})->parts.at(0).size(), size_t{15} << 20);
}

TEST(StoreServerTest, DisallowedClientIsDisconnected) {
  auto server = service::StoreServer::start(
      0, [](const IpAddress& from) { return from == IpAddress::v4(INADDR_LOOPBACK + 2); });
  ASSERT_TRUE(server.ok());
  StoreVisitor stranger((*server)->port(), 2), rank((*server)->port(), 3);
  EXPECT_FALSE(stranger.open("job"));
  EXPECT_TRUE(rank.open("job"));
}

}  // namespace
}  // namespace mcast::test
