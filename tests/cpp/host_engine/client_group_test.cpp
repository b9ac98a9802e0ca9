// Groups that a host engine runs: the suite of in-process groups passes with them, and the end of
// an engine or a rank is reported to all ranks, by name and in bounded time.
#include "host_engine/client/client_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/clock.h"
#include "engine_process.h"
#include "shm/arena_pool.h"
#include "support/ranks/arena_new.h"
#include "support/ranks/programs.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

std::shared_ptr<Group> hosted(const EngineProcess& engine, Member rank, uint32_t ranks,
                              KeyValueStore& store) {
  return make_group("hosted", rank, ranks, store, {{"engine", engine.setting()}});
}

// Does some work that is over on all ranks, so that later events do not disturb its end.
bool work_together(Group& group, Member rank, uint32_t ranks, DirectoryStore& store) {
  if (!work(group, 1000, 2)) return false;
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < ranks; r++) keys.push_back("worked." + std::to_string(r));
  return store.set(keys[rank], "").ok() && store.multi_get(keys, 30 * kSecond).ok();
}

// Runs this program's suite of in-process groups through an engine. `user`: the user of its ranks,
// which may differ from the engine's.
void run_suite(const std::string& setting, uid_t user = geteuid()) {
  service::HostEngineOptions options;
  options.guardian = false;
  options.goodbye = 0;
  options.mode = 0666;
  EngineProcess engine(options);
  (void)chmod(std::filesystem::path(engine.path()).parent_path().c_str(), 0755);
  const pid_t pid = fork();
  if (pid == 0) {
    if (setting == "map") setenv("MCAST_TEST_ARENAS", "1", 1);
    setenv("MCAST_TEST_ENGINE_MEMORY", setting.c_str(), 1);
    setenv("MCAST_TEST_USER", std::to_string(user).c_str(), 1);
    setenv("MCAST_TEST_ENGINE", engine.setting().c_str(), 1);
    std::string filter = "--gtest_filter=Engine.*:EngineMessages.*";
    for (int i = 0; i <= 6; i++) {
      filter += ":Sizes/EngineOps.DeliverExactBytes/" + std::to_string(i);
    }
    for (int i = 0; i <= 6; i++) {
      filter += ":Sizes/EngineReductions.EqualTheSumBesideOtherTraffic/" + std::to_string(i);
    }
    // These tests count resources of the process that runs the group: lanes, descriptors, salts.
    filter += "-Engine.ReInitLeaksNothing:Engine.JobsDiffer*";
    execl("/proc/self/exe", "mcast_test_host_engine", "--gtest_brief=1", filter.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ClientGroup, TheSuiteOfGroupsPassesThroughAnEngine) { run_suite("slots"); }

TEST(ClientGroup, TheSuitePassesWithMemoryThatTheEngineMaps) { run_suite("map"); }

TEST(ClientGroup, TheSuitePassesWithMemoryThatTheEngineCopies) { run_suite("copy"); }

TEST(ClientGroup, TheSuitePassesWithMemoryOfAnotherUserThatTheEngineCopies) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  run_suite("copy", 65534);
}

// An engine that was given up may continue later. It must not write to memory that was given back.
TEST(ClientGroup, MemoryIsWithdrawnFromAnEngineThatHangs) {
  service::TenantLimits limits;
  limits.silence = kSecond;
  EngineProcess first(limits), second;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    new_in_arenas();
    auto group = hosted(rank == 0 ? first : second, rank, 2, store);
    if (!group || !work_together(*group, rank, 2, store)) return false;
    constexpr size_t kBlock = 1 << 20;
    std::vector<std::byte> data(2 * kBlock);
    fill(data, rank * kBlock, kBlock, 7 + rank);
    if (rank == 1) {
      if (!store.multi_get({"stopped"}, 30 * kSecond).ok()) return false;
      (void)allgather(*group, data);  // succeeds if the first engine is fast enough
      return true;
    }
    const ArenaPool& pool = *ArenaPool::of_process();
    auto behind = Segment::attach(getpid(), pool.segment().fd(), pool.segment().size());
    const uint64_t at = pool.offset_of(data.data(), data.size()).value();
    const Status status = wait_for([&](PostOptions options) {
      const auto region = std::make_shared<Region>(data.data(), data.size(), nullptr);
      const auto block = [&](size_t r) { return Slice{region, r * kBlock, kBlock}; };
      auto posted = group->post_allgather(block(0), {block(0), block(1)}, std::move(options));
      usleep(300'000);  // the engine takes the post; otherwise nothing is tested
      first.stop();
      EXPECT_TRUE(store.set("stopped", "").ok());
      return posted;
    });
    EXPECT_THAT(status.message(), HasSubstr("has not run for"));
    EXPECT_FALSE(pool.offset_of(data.data(), data.size())) << "withdrawn";
    std::fill(data.begin(), data.end(), std::byte{0x77});
    first.signal(SIGCONT);
    const std::byte* const late = behind->data() + at + kBlock;
    const auto written = [&] {
      return std::any_of(late, late + kBlock, [](std::byte b) { return b != std::byte{0}; });
    };
    EXPECT_TRUE(until(written, "a late write of the engine to the withdrawn arena"));
    return std::all_of(data.begin(), data.end(), [](std::byte b) { return b == std::byte{0x77}; });
  }));
}

// The pool exists if a group was asked to use it, and is mapped unless the setting requires copies.
TEST(ClientGroup, MemoryOfThePoolIsMappedAsTheSettingSays) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    EXPECT_EQ(ArenaPool::of_process(), nullptr);
    constexpr size_t kBlock = 1 << 20;
    for (const char* const memory : {"map", "map_all", "auto", "slots", "copy"}) {
      SCOPED_TRACE(memory);
      auto scope = store.scoped(memory);
      auto group = make_group(memory, rank, 2, scope,
                              {{"engine", engine.setting()}, {"engine_memory", memory}});
      if (!group) return false;
      const bool maps = memory[0] == 'm' || memory[0] == 'a';
      const Status status = group->maps_pool();
      EXPECT_EQ(status.ok(), maps) << status.to_string();
      if (!maps) {
        EXPECT_EQ(status.message(),
                  std::string("engine_memory=") + memory +
                      " makes ranks copy all tensors; engine_memory=map does not");
      }
      ArenaPool& pool = *ArenaPool::of_process();
      std::byte* const data = pool.allocate(2 * kBlock);
      const auto region = std::make_shared<Region>(data, 2 * kBlock, nullptr);
      const auto block = [&](size_t r) { return Slice{region, r * kBlock, kBlock}; };
      std::fill_n(data + rank * kBlock, kBlock, static_cast<std::byte>(rank + 1));
      const Status ended = wait_for([&](PostOptions options) {
        return group->post_allgather(block(rank), {block(0), block(1)}, std::move(options));
      });
      EXPECT_TRUE(ended.ok()) << ended.to_string();
      EXPECT_EQ(data[0], std::byte{1});
      EXPECT_EQ(data[2 * kBlock - 1], std::byte{2});
      EXPECT_EQ(counter(*group, "engine_mapped_bytes"), maps ? 3 * kBlock : 0);
      EXPECT_EQ(counter(*group, "engine_span_bytes") + counter(*group, "engine_moved_bytes"),
                maps ? 0 : 3 * kBlock);
      pool.release(data);
      if (!group->close(5 * kSecond).ok()) return false;
    }
    auto scope = store.scoped("without");
    auto without = make_group("without", rank, 2, scope, {});
    EXPECT_EQ(without->maps_pool().code(), Code::kUnavailable);
    return without->close(5 * kSecond).ok();
  }));
}

TEST(ClientGroup, AKilledEngineIsNamed) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(engine, rank, 2, store);
    if (!group || !work_together(*group, rank, 2, store)) return false;
    if (rank == 0) engine.signal(SIGKILL);
    std::vector<std::byte> data(2 << 20);
    Status status;
    until([&] { return !(status = allgather(*group, data)).ok(); }, "the killed engine's error");
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("engine of this host (process "));
    EXPECT_THAT(barrier(*group).message(), HasSubstr("failed earlier"));
    return true;
  }));
  EXPECT_EQ(engine.end(SIGTERM), -SIGKILL);
}

TEST(ClientGroup, AStoppedEngineIsNamed) {
  service::TenantLimits limits;
  limits.silence = kSecond;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(engine, rank, 2, store);
    if (!group || !work_together(*group, rank, 2, store)) return false;
    if (rank == 0) engine.stop();
    std::vector<std::byte> data(2 << 20);
    Status status;
    until([&] { return !(status = allgather(*group, data)).ok(); }, "the stopped engine's error");
    EXPECT_THAT(status.message(), HasSubstr("has not run for"));
    return true;
  }));
  engine.signal(SIGCONT);
}

TEST(ClientGroup, AKilledRankIsNamedByTheOthers) {
  EngineProcess engine;
  const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(engine, rank, 3, store);
    if (!group || !work_together(*group, rank, 3, store)) return false;
    if (rank == 1) raise(SIGKILL);
    std::vector<std::byte> data(3 << 20);
    const Status status = allgather(*group, data);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
    EXPECT_THAT(status.message(), HasSubstr("has ended"));
    return true;
  });
  EXPECT_EQ(ends[0].exit_code, 0);
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_EQ(ends[2].exit_code, 0);
}

// A rank's posts end on the other ranks while its process is stopped.
TEST(ClientGroup, StoppedRanksPostsAreServed) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = hosted(engine, rank, 2, store);
    if (!group || !work_together(*group, rank, 2, store)) return false;
    constexpr size_t kBlock = 4 << 20;
    std::vector<std::byte> data(2 * kBlock);
    fill(data, rank * kBlock, kBlock, 7 + rank);
    if (rank == 1) {
      const auto region = std::make_shared<Region>(data.data(), data.size(), nullptr);
      const auto block = [&](size_t r) { return Slice{region, r * kBlock, kBlock}; };
      const Status status = wait_for([&](PostOptions options) {
        auto posted = group->post_allgather(block(1), {block(0), block(1)}, std::move(options));
        EXPECT_TRUE(store.set("posted", std::to_string(getpid())).ok());
        return posted;
      });
      EXPECT_TRUE(status.ok()) << status.to_string();
    } else {
      const auto posted = store.multi_get({"posted"}, 30 * kSecond);
      if (!posted.ok()) return false;
      const pid_t other = std::stoi((*posted)[0]);
      kill(other, SIGSTOP);
      const Status status = allgather(*group, data);
      kill(other, SIGCONT);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_TRUE(holds(data, 0, kBlock, 7) && holds(data, kBlock, kBlock, 8));
    return barrier(*group).ok() && group->close(5 * kSecond).ok();
  }));
}

}  // namespace
}  // namespace mcast::test
