// A host engine that is replaced, drained, ended or stopped: the errors that its clients and the
// ranks elsewhere get, and how long groups continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/clock.h"
#include "engine_process.h"
#include "host_engine/client/client_link.h"
#include "host_engine/server/drain_socket.h"
#include "host_engine/server/guardian.h"
#include "support/ranks/programs.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;
using testing::Not;

service::HostEngineOptions unwatched() {
  service::HostEngineOptions options;
  options.guardian = false;
  return options;
}

std::shared_ptr<Group> hosted(const std::string& setting, const std::string& name, Member rank,
                              uint32_t ranks, DirectoryStore& store) {
  auto scope = store.scoped(name);
  return make_group(name, rank, ranks, scope, {{"engine", setting}});
}

bool meet(const std::string& where, Member rank, uint32_t ranks, DirectoryStore& store) {
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < ranks; r++) keys.push_back(where + "." + std::to_string(r));
  return store.set(keys[rank], "").ok() && store.multi_get(keys, 30 * kSecond).ok();
}

std::string server(const Group& group) { return group.stats().transport_reason; }

// A job of two ranks whose engine is replaced while it works: its old groups continue, its new
// groups use the new engine, and the old engine ends after its last group, long before its limit
// and while its clients' processes live.
void replace_engine(bool by_force) {
  EngineProcess first(unwatched());
  const std::string drained = first.path() + ".drained";
  service::HostEngineOptions next = unwatched();
  next.path = first.path();
  next.replace = by_force;
  EngineProcess second(next, drained);
  expect_all_good(run_ranks(2, 100, [&](Member rank, DirectoryStore& store) {
    auto old = hosted(first.setting(), "old", rank, 2, store);
    if (!old || !work(*old, 10'000, 2) || !meet("worked", rank, 2, store)) return false;
    if (rank == 0) {
      if (!by_force) {
        const auto told = service::ask_to_drain(first.path(), 500 * kSecond);
        EXPECT_TRUE(told.ok() && told->limit == 500 * kSecond) << told.status().to_string();
      }
      std::ofstream(drained) << "now";
    }
    if (by_force && rank == 0) {  // else a first group may find the old engine
      EXPECT_TRUE(until(
          [&] {
            const auto link = ClientLink::connect(first.path(), kSecond);
            return link.ok() && (*link)->engine_pid() == second.pid();
          },
          "the new engine to listen"));
    }
    if (!meet("drained", rank, 2, store)) return false;
    std::shared_ptr<Group> made;
    int tries = 0;
    do {  // the first engine may notice the replacement later
      made = hosted(first.setting(), "new" + std::to_string(tries), rank, 2, store);
      if (!made || !work(*made, 10'000, 1)) return false;
      if (!meet("tried" + std::to_string(tries), rank, 2, store)) return false;
      std::vector<std::byte> go_on(2);
      const bool there = server(*made) != server(*old);
      go_on[rank] = std::byte(there ? 1 : 0);
      if (!allgather(*old, go_on).ok()) return false;
      if (!by_force || (go_on[0] == go_on[1] && there)) break;
      usleep(50'000);
    } while (++tries < 100);
    EXPECT_THAT(server(*made), HasSubstr("(process " + std::to_string(second.pid()) + ")"));
    EXPECT_THAT(server(*old), HasSubstr("(process " + std::to_string(first.pid()) + ")"));
    EXPECT_TRUE(work(*old, 100'000, 3));
    EXPECT_TRUE(reduce_all_ways(*old, 10'000, 1));
    EXPECT_FALSE(EngineProcess::has_ended(first.pid()));
    EXPECT_TRUE(meet("last", rank, 2, store));
    EXPECT_TRUE(old->close(5 * kSecond).ok());
    old.reset();
    EXPECT_TRUE(
        until([&] { return EngineProcess::has_ended(first.pid()); }, "the drained engine to end"));
    return work(*made, 10'000, 3) && made->close(5 * kSecond).ok();
  }));
  EXPECT_EQ(first.end(0), 0) << "it ended by itself";
  std::filesystem::remove(drained);
  EXPECT_TRUE(std::filesystem::exists(second.path())) << "the first left the second's socket";
}

TEST(EngineDrain, AJobGoesOnWhileANewEngineServesTheNext) { replace_engine(false); }

TEST(EngineDrain, AnEngineWhoseSocketIsReplacedDrains) { replace_engine(true); }

// Rank 0's operation is in flight, and rank 2 calls nothing meanwhile; both use the engine that
// ends. Rank 1 uses another engine.
TEST(EngineDrain, TheLimitIsNamedOnAllRanks) {
  EngineProcess first(unwatched()), second(unwatched());
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(rank == 1 ? second.setting() : first.setting(), "g", rank, 3, store);
    if (!group || !work(*group, 1000, 2) || !meet("worked", rank, 3, store)) return false;
    if (rank == 0) {
      EXPECT_TRUE(service::ask_to_drain(first.path(), kSecond).ok());
    }
    if (rank == 2) {
      EXPECT_TRUE(until([&] { return EngineProcess::has_ended(first.pid()); },
                        "the drained engine to end"));
    }
    std::vector<std::byte> data(3 << 20);
    const Status status = allgather(*group, data);
    EXPECT_EQ(status.ok(), false);
    EXPECT_THAT(status.message(), HasSubstr("is being replaced"));
    EXPECT_THAT(status.message(), HasSubstr("its clients had 1.0 s to leave"));
    if (rank == 1) {
      EXPECT_THAT(status.message(), HasSubstr("is lost: the engine of its host"));
    }
    return true;
  }));
  EXPECT_EQ(first.end(0), 0);
}

// SIGTERM starts a drain of `goodbye`; a second one shortly after ends the engine at once.
TEST(EngineDrain, ASecondSignalEndsItAtOnce) {
  service::HostEngineOptions options = unwatched();
  options.goodbye = 3600 * kSecond;
  EngineProcess engine(options);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(engine.setting(), "g", rank, 2, store);
    if (!group || !work(*group, 1000, 2) || !meet("worked", rank, 2, store)) return false;
    if (rank == 0) engine.signal(SIGTERM);
    if (rank == 0) {
      EXPECT_TRUE(until(
          [&] {
            return ClientLink::connect(engine.path(), 150 * kMilli).status().code() ==
                   Code::kUnavailable;
          },
          "the engine to refuse clients"));
    }
    EXPECT_TRUE(meet("drains", rank, 2, store));
    EXPECT_TRUE(work(*group, 1000, 2)) << "it goes on";
    EXPECT_TRUE(meet("worked again", rank, 2, store));
    Status status;
    std::vector<std::byte> data(2 << 10);
    const Nanos until = monotonic_now() + 30 * kSecond;
    while (status.ok() && monotonic_now() < until) {
      if (rank == 0) engine.signal(SIGTERM);
      usleep(100'000);
      status = allgather(*group, data);
    }
    EXPECT_THAT(status.message(), HasSubstr("is being replaced"));
    return true;
  }));
  EXPECT_EQ(engine.end(0), 0);
}

TEST(EngineDrain, NewClientIsTurnedAwayAndAutoUsesItsProcess) {
  EngineProcess engine(unwatched());
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto old = hosted(engine.setting(), "old", rank, 2, store);
    if (!old || !meet("made", rank, 2, store)) return false;
    if (rank == 0) {
      EXPECT_TRUE(service::ask_to_drain(engine.path(), 600 * kSecond).ok());
    }
    if (!meet("drained", rank, 2, store)) return false;
    const auto refused = ClientLink::connect(engine.path(), 100 * kMilli);
    EXPECT_EQ(refused.status().code(), Code::kUnavailable);
    EXPECT_THAT(refused.status().message(),
                HasSubstr("is being replaced and takes no new clients or groups"));
    auto made = hosted("auto:" + engine.path(), "new", rank, 2, store);
    if (!made || !work(*made, 10'000, 1) || !work(*old, 10'000, 1)) return false;
    EXPECT_THAT(server(*made), Not(HasSubstr("engine of this host")));
    EXPECT_THAT(server(*old), HasSubstr("engine of this host"));
    EXPECT_TRUE(meet("end", rank, 2, store) && old->close(5 * kSecond).ok());
    old.reset();  // its last group; no new link replaces this one
    EXPECT_TRUE(until([&] { return EngineProcess::has_ended(engine.pid()); }, "the engine to end"));
    return made->close(5 * kSecond).ok();
  }));
  EXPECT_EQ(engine.end(0), 0);
}

// Number of connections to engines that this process has open.
size_t packet_sockets() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; fd++) {
    int type = 0;
    socklen_t length = sizeof type;
    const bool is = ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
    if (is && type == SOCK_SEQPACKET) count++;
  }
  return count;
}

// Otherwise the death of a rank would not be noticed while one of its workers lives, since the
// worker would keep the rank's end of the socket open.
TEST(EngineDrain, AForkedChildHasNoSocketOfEitherEngine) {
  EngineProcess first(unwatched());
  const std::string drained = first.path() + ".drained";
  service::HostEngineOptions next = unwatched();
  next.path = first.path();
  EngineProcess second(next, drained);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto old = hosted(first.setting(), "old", rank, 2, store);
    if (!old || !meet("made", rank, 2, store)) return false;
    if (rank == 0) {
      EXPECT_TRUE(service::ask_to_drain(first.path(), 500 * kSecond).ok());
      std::ofstream(drained) << "now";
    }
    if (!meet("drained", rank, 2, store)) return false;
    auto made = hosted(first.setting(), "new", rank, 2, store);
    if (!made || server(*made) == server(*old)) return false;
    EXPECT_EQ(packet_sockets(), 2u);
    const pid_t child = fork();
    if (child == 0) _exit(packet_sockets() == 0 ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return meet("end", rank, 2, store) && old->close(5 * kSecond).ok() &&
           made->close(5 * kSecond).ok();
  }));
}

TEST(EngineDrain, IsForTheOwnerOnly) {
  EngineProcess engine;
  struct stat file {};
  ASSERT_EQ(stat((engine.path() + ".drain").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(engine.path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0660u);
  // An unreadable request is answered with an error, and the engine continues.
  auto fd = connect_to(engine.path() + ".drain", SOCK_SEQPACKET);
  ASSERT_TRUE(fd.ok());
  LocalSocket socket(std::move(fd).value());
  ASSERT_TRUE(socket.send(ipc::bytes_of(control_of(ipc::Hello{})), {}, kSecond).ok());
  Packet packet;
  LocalSocket::Got got = LocalSocket::Got::kNothing;
  EXPECT_TRUE(until([&] { return (got = socket.receive(packet)) != LocalSocket::Got::kNothing; },
                    "an answer of the engine"));
  const auto answer = ipc::parse_control(packet.bytes);
  ipc::Verdict verdict;
  ASSERT_TRUE(answer && read(*answer, verdict));
  EXPECT_EQ(verdict.text, "the request cannot be read");
  EXPECT_TRUE(ClientLink::connect(engine.path(), kSecond).ok());
  const auto nobody = service::ask_to_drain("/nonexistent/engine.sock", 0);
  EXPECT_THAT(nobody.status().message(), HasSubstr("no engine answers"));
}

// For example, a cleanup empties a service's folder: removed sockets must not cause a drain.
TEST(EngineDrain, RemovedSocketsAreMadeAgain) {
  EngineProcess engine(unwatched());
  for (const char* suffix : {"", ".status", ".drain"}) {
    EXPECT_TRUE(std::filesystem::remove(engine.path() + suffix)) << suffix;
  }
  EXPECT_TRUE(until([&] { return ClientLink::connect(engine.path(), kSecond).ok(); },
                    "the engine to listen again"));
  EXPECT_TRUE(connect_to(engine.path() + ".status", SOCK_STREAM).ok());
  EXPECT_TRUE(connect_to(engine.path() + ".drain", SOCK_SEQPACKET).ok());
}

TEST(EngineDrain, OnlyUsersThatAreAllowedMayCome) {
  service::HostEngineOptions options = unwatched();
  options.users = {geteuid() + 1};
  options.group = getegid();
  EngineProcess engine(options);
  const auto refused = ClientLink::connect(engine.path(), kSecond);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("user " + std::to_string(geteuid()) + " is not in the engine's --allow"));
}

// Returns the engine process behind a guardian: the process that clients talk to.
pid_t engine_of(const EngineProcess& guarded) {
  const auto link = ClientLink::connect(guarded.path(), 10 * kSecond);
  EXPECT_TRUE(link.ok()) << link.status().to_string();
  return link.ok() ? (*link)->engine_pid() : 0;
}

// Rank 0 sends `number` to a process. Checks the errors of the ranks and then the guardian's exit
// status.
void expect_an_end(EngineProcess& engine, const std::function<pid_t()>& victim, int number) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(engine.setting(), "g", rank, 2, store);
    if (!group || !work(*group, 1000, 2) || !meet("worked", rank, 2, store)) return false;
    if (rank == 0) kill(victim(), number);
    Status status;
    std::vector<std::byte> data(2 << 20);
    const Nanos until = monotonic_now() + 30 * kSecond;
    while (status.ok() && monotonic_now() < until) status = allgather(*group, data);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("ended; its log says why"));
    return true;
  }));
}

service::HostEngineOptions watched() {
  service::HostEngineOptions options;
  options.limits.silence = 20 * kSecond;  // would be named as "has not run for"
  return options;
}

TEST(EngineGuardian, EndsAnEngineThatStandsStill) {
  EngineProcess engine(watched());
  const pid_t inner = engine_of(engine);
  EXPECT_NE(inner, engine.pid());
  expect_an_end(
      engine, [&] { return inner; }, SIGSTOP);
  EXPECT_EQ(engine.end(0), service::kStoodStill);
}

TEST(EngineGuardian, TellsTheSignalThatAnEngineDiedOf) {
  EngineProcess engine(watched());
  const pid_t inner = engine_of(engine);
  expect_an_end(
      engine, [&] { return inner; }, SIGKILL);
  EXPECT_EQ(engine.end(0), 128 + SIGKILL);
}

TEST(EngineGuardian, TakesItsEngineAlong) {
  EngineProcess engine(watched());
  const pid_t inner = engine_of(engine);
  expect_an_end(
      engine, [&] { return engine.pid(); }, SIGKILL);
  EXPECT_TRUE(until([&] { return EngineProcess::has_ended(inner); }, "the inner engine to end"));
  EXPECT_EQ(engine.end(0), -SIGKILL);
}

// Signals are forwarded, and the guardian exits with the engine's status.
TEST(EngineGuardian, EndsInOrderWithItsEngine) {
  EngineProcess engine(watched());
  const pid_t inner = engine_of(engine);
  EXPECT_EQ(engine.end(SIGINT), 0);
  EXPECT_TRUE(EngineProcess::has_ended(inner));
}

}  // namespace
}  // namespace mcast::test
