// However often the status is requested, the thread that replies still does its other work.
#include "daemon/status_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "support/engine_here.h"
#include "support/temporary_folder.h"

namespace mcast::test {
namespace {

using service::StatusSocket;
using testing::HasSubstr;

// Everything that is sent until the end.
std::string read_to_end(int fd) {
  std::string text;
  char piece[4096];
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, 10'000) <= 0) return text;
    const ssize_t got = ::recv(fd, piece, sizeof piece, 0);
    if (got <= 0) return text;
    text.append(piece, static_cast<size_t>(got));
  }
}

TEST(StatusSocket, OnePollSendsOneTextToAllReaders) {
  const TemporaryFolder folder;
  StatusSocket socket;
  ASSERT_TRUE(socket.open(folder.path() + "/status").ok());
  std::vector<Fd> readers;
  for (int i = 0; i < 10; i++) {
    auto fd = connect_to(socket.path(), SOCK_STREAM);
    ASSERT_TRUE(fd.ok()) << fd.status().to_string();
    readers.push_back(std::move(fd).value());
  }
  int texts = 0;
  const auto turn = [&] {
    std::vector<pollfd> list;
    socket.watch(list);
    ASSERT_GE(::poll(list.data(), list.size(), 10'000), 1);
    socket.serve(list, monotonic_now(), [&] { return "text " + std::to_string(++texts); });
  };
  turn();
  EXPECT_EQ(texts, 1);
  for (const Fd& fd : readers) EXPECT_EQ(read_to_end(fd.get()), "text 1");
  auto late = connect_to(socket.path(), SOCK_STREAM);
  ASSERT_TRUE(late.ok());
  turn();
  EXPECT_EQ(read_to_end(late->get()), "text 2");
}

// A request that arrives while a poll writes its text is answered in the next poll at the latest.
TEST(StatusSocket, PollEndsUnderAFloodOfReaders) {
  const TemporaryFolder folder;
  StatusSocket socket;
  const std::string path = folder.path() + "/status";
  ASSERT_TRUE(socket.open(path).ok());
  std::atomic<bool> over{false};
  std::vector<std::thread> flood;
  for (int i = 0; i < 3; i++) {
    flood.emplace_back([&] {
      while (!over) (void)connect_to(path, SOCK_STREAM);
    });
  }
  size_t asked = 0;
  for (int i = 0; i < 200; i++) {
    std::vector<pollfd> list;
    socket.watch(list);
    (void)::poll(list.data(), list.size(), 100);
    const size_t before = asked;
    socket.serve(list, monotonic_now(), [&] {
      asked++;
      return std::string("text");
    });
    EXPECT_LE(asked, before + 1);
  }
  over = true;
  socket.close();  // connections that wait for room get none
  for (std::thread& one : flood) one.join();
}

// The guardian watches these beats.
TEST(StatusSocket, AnEngineBeatsUnderAFloodOfReadersAndClients) {
  std::atomic<uint64_t> beats{0};
  service::HostEngineOptions options;
  options.guardian = false;
  options.beats = &beats;
  const EngineHere engine(options);
  ASSERT_TRUE(engine);
  std::atomic<bool> over{false};
  std::vector<std::thread> flood;
  for (const auto& [path, type] : {std::pair(engine.path() + ".status", SOCK_STREAM),
                                   std::pair(engine.path() + ".status", SOCK_STREAM),
                                   std::pair(engine.path(), SOCK_SEQPACKET)}) {
    flood.emplace_back([&over, path = path, type = type] {
      while (!over) (void)connect_to(path, type);
    });
  }
  for (const uint64_t from = beats; beats < from + 100;) std::this_thread::yield();
  over = true;
  for (std::thread& one : flood) one.join();
  const std::string status = engine.path() + ".status";
  auto reader = connect_to(status, SOCK_STREAM);
  while (!reader.ok()) reader = connect_to(status, SOCK_STREAM);  // until there is room
  EXPECT_THAT(read_to_end(reader->get()), HasSubstr("\"limits\""));
}

}  // namespace
}  // namespace mcast::test
