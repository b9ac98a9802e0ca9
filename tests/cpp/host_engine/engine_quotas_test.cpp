// Quotas of one client of a host engine: threads, memory, mappings, and time of the engine's own
// thread. A client beyond a quota is refused or ended with an error that names it, and other
// clients are not affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "engine_process.h"
#include "host_engine/client/client_link.h"
#include "host_engine/server/drain_socket.h"
#include "hostile_client.h"
#include "support/engine_here.h"
#include "support/ranks/programs.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

// The error of the refused `call`, or empty if it was not refused or not answered.
std::string refusal_of(Hostile& client, uint64_t call) {
  while (const auto message = client.hear()) {
    ipc::Verdict verdict;
    if (message->call != call || message->type != ipc::ControlType::kGroupFailed) continue;
    return read(*message, verdict) ? verdict.text : "";
  }
  return "";
}

// It would run on the client's thread in the engine, with blocks of any length.
TEST(EngineQuotas, AGroupOfOneRankIsNotTheEngines) {
  EngineProcess engine;
  Hostile client(engine.path(), 1);
  ASSERT_TRUE(client.greet());
  client.ask_for_group(1, 1);
  EXPECT_THAT(refusal_of(client, 1), HasSubstr("does not make groups of one rank"));
  EXPECT_FALSE(client.ended());
}

// Runs in a process, and takes several pieces of accumulators.
TEST(EngineQuotas, AGroupOfOneRankFoldsInPieces) {
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore& store) {
    auto group = make_group("alone", 0, 1, store);
    return group && reduce_all_ways(*group, 50'001, 1);
  }));
}

TEST(EngineQuotas, CreationsTakeThreadsOfTheirUser) {
  service::HostEngineOptions options;
  options.guardian = false;
  options.goodbye = 0;
  options.threads = service::Tenant::kThreads + 2;
  EngineProcess engine(options);
  Hostile client(engine.path(), 1);
  ASSERT_TRUE(client.greet());
  // Their store requests are never answered.
  for (uint64_t call = 1; call <= 3; call++) client.ask_for_group(call, 2);
  EXPECT_THAT(refusal_of(client, 3), HasSubstr("threads of one user (--threads)"));
}

TEST(EngineQuotas, ArenasAreCounted) {
  EngineProcess engine;
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore&) {
    constexpr uint64_t kSmall = 4096;
    auto link = ClientLink::connect(engine.path(), 10 * kSecond);
    if (!link.ok()) return false;
    std::string refused;
    int taken = 0;
    for (; refused.empty() && taken < 5000; taken++) {
      const auto made = Segment::create("small", kSmall);
      if (!made.ok()) return false;
      const int file = made->fd();
      const auto offer = ipc::control_of(ipc::ControlType::kArenaOffer, 0, ipc::Arena{0, kSmall});
      const auto answer = (*link)->ask(offer, 10 * kSecond, std::span<const int>(&file, 1));
      if (!answer.ok()) return false;
      ipc::Verdict verdict;
      if (answer->type == ipc::ControlType::kRefused && read(*answer, verdict)) {
        refused = verdict.text;
      }
    }
    EXPECT_THAT(refused, HasSubstr("engine's limit of 1024 arenas of a client is reached"));
    EXPECT_EQ(taken, 1025);
    return (*link)->lost().ok();
  }));
}

TEST(EngineQuotas, ClientThatBreaksItsCompletionRingIsEnded) {
  EngineProcess engine;
  Hostile client(engine.path(), 1);
  ASSERT_TRUE(client.greet());
  client.break_completions();
  client.post();  // an unknown group: it is answered
  EXPECT_TRUE(until([&] { return client.ended(); }, "the client to be ended"));
}

// A drain ends the engine, whatever a client sends meanwhile.
TEST(EngineQuotas, BusyClientDoesNotDelayADrain) {
  EngineProcess engine;
  std::atomic<bool> over{false};
  Hostile client(engine.path(), 1);
  ASSERT_TRUE(client.greet());
  std::thread looks([&] {
    while (!over && !client.ended()) (void)client.look();
  });
  EXPECT_TRUE(service::ask_to_drain(engine.path(), 0).ok());
  EXPECT_TRUE(until([&] { return EngineProcess::has_ended(engine.pid()); }, "the engine to end"));
  over = true;
  looks.join();
  EXPECT_EQ(engine.end(0), 0);
}

// Rank 0's operation cannot end, since rank 1 does not call it. The group counts while it is being
// closed. If its process ends, the engine does not wait for the close.
TEST(EngineQuotas, ALongCloseEndsWithItsClient) {
  service::TenantLimits limits;
  limits.groups = 1;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    const auto spec = group_spec("closing", rank, 2, {{"engine", engine.setting()}});
    if (!spec) return false;
    if (rank == 1) {
      auto made = Engine::instance().create_group(*spec, store);
      if (!made.ok() || !store.set("both", "").ok()) return false;
      EXPECT_TRUE(
          until([&] { return !(*made)->stats().failure.empty(); }, "the failure of the group"));
      EXPECT_THAT((*made)->stats().failure, HasSubstr("rank 0 is lost: its process"));
      return true;
    }
    auto link = ClientLink::connect(engine.path(), 10 * kSecond);
    if (!link.ok()) return false;
    const auto made = (*link)->make_group(*spec, store);
    const auto span = (*link)->arenas().take(4096);
    if (!made.ok() || !*made || !span.ok()) return false;
    if (!store.multi_get({"both"}, 30 * kSecond).ok()) return false;
    ipc::PostRecord post;
    post.group = (*made)->handle;
    post.timeout = 3600 * kSecond;
    post.descriptor = {wire::Kind::kBroadcast, 0, 1, 4096, "broadcast"};
    ipc::add_slice(post.runs, static_cast<ipc::Space>((*span)->space), ipc::Role::kOutput,
                   (*span)->offset, 4096);
    EXPECT_TRUE((*link)->submit(post).ok());
    const ipc::Close close{(*made)->handle, 86'400 * kSecond, false};
    (*link)->ask(ipc::control_of(0, close), [](const Result<ipc::Control>&) {});
    DirectoryStore other = store.scoped("second");
    const auto second = (*link)->make_group(*spec, other);
    EXPECT_THAT(second.status().message(), HasSubstr("engine's limit of 1 groups"));
    ::_exit(testing::Test::HasFailure() ? 1 : 0);  // without Bye
  }));
}

// An engine of another version, as far as a client can see it.
class OtherVersion {
 public:
  OtherVersion() {
    LocalListener::How how;
    how.type = SOCK_SEQPACKET;
    auto opened = LocalListener::open(path(), how);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (!opened.ok()) return;
    listener_ = std::move(opened).value();
    thread_ = std::thread([this] { run(); });
  }
  ~OtherVersion() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::string path() const { return folder_.path() + "/engine.sock"; }

 private:
  void run() {
    const Status why(Code::kMismatch, "it is of version 0.0.0");
    const auto refusal = control_of(ipc::ControlType::kRefused, 0, ipc::Verdict::of(why));
    while (!over_) {
      pollfd ready{listener_.fd(), POLLIN, 0};
      (void)::poll(&ready, 1, 20);
      Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) continue;
      guests_.emplace_back(std::move(fd));
      (void)guests_.back().send(ipc::bytes_of(refusal), {}, kSecond);
    }
  }
  const TemporaryFolder folder_;
  LocalListener listener_;
  std::vector<LocalSocket> guests_;  // kept until the end, so that each reads its answer
  std::atomic<bool> over_{false};
  std::thread thread_;
};

std::atomic<int> g_lost{0};

// Otherwise any process that may use the engine could fill its log.
TEST(EngineQuotas, ClientsWithoutByeFillNoLog) {
  const EngineHere engine;
  ASSERT_TRUE(engine);
  set_log_sink([](int level, const char* line) {
    g_lost += level == 2 && std::string(line).find("client (process ") != std::string::npos;
  });
  const auto idle = [&] {
    return engine->status_text().find(R"("clients":[])") != std::string::npos;
  };
  for (int i = 0; i < 60; i++) {
    auto fd = connect_to(engine.path(), SOCK_SEQPACKET);
    ASSERT_TRUE(fd.ok()) << fd.status().to_string();
    LocalSocket socket(std::move(fd).value());
    ASSERT_TRUE(socket.send(ipc::bytes_of(control_of(ipc::Hello{})), {}, kSecond).ok());
    Packet packet;
    EXPECT_TRUE(until([&] { return socket.receive(packet) == LocalSocket::Got::kPacket; },
                      "the engine's Welcome"));
    socket = LocalSocket(Fd());
    EXPECT_TRUE(until(idle, "the end of the client"));
  }
  set_log_sink(nullptr);
  EXPECT_GE(g_lost, 20);
  EXPECT_LE(g_lost, 40) << "20 in 10 s, of a test that may take longer";
}

std::atomic<int> g_warned{0};

TEST(EngineQuotas, AutoWarnsOnceOfAnEngineOfAnotherVersion) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    set_log_sink([](int, const char* line) {
      if (std::string(line).find("it is of version 0.0.0") != std::string::npos) g_warned++;
    });
    OtherVersion engine;
    for (const char* const name : {"first", "second"}) {
      DirectoryStore own = store.scoped(name);
      auto group = make_group(name, rank, 2, own, {{"engine", "auto:" + engine.path()}});
      if (!group || !work(*group, 1000, 1)) return false;
    }
    EXPECT_EQ(g_warned, 1);
    set_log_sink(nullptr);
    return true;
  }));
}

}  // namespace
}  // namespace mcast::test
