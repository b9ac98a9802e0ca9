// engine_memory=copy through a whole engine. Results arrive, also those of a stopped rank. Memory
// that goes away, does not respond, or is too large ends the operation with an error that names the
// rank, on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/local_socket.h"
#include "base/rng.h"
#include "engine_process.h"
#include "hung_page.h"
#include "support/ranks/programs.h"
#include "support/seeds.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

std::map<std::string, std::string> copied(const EngineProcess& engine,
                                          const std::string& memory = "copy") {
  return {{"engine", engine.setting()}, {"engine_memory", memory}};
}

// The status report of the engine about its clients.
std::string told(const EngineProcess& engine) {
  const auto fd = connect_to(engine.path() + ".status", SOCK_STREAM);
  std::string text(size_t{64} << 10, '\0');
  size_t length = 0;
  while (fd.ok()) {
    pollfd ready{fd->get(), POLLIN, 0};
    (void)poll(&ready, 1, 10'000);
    const ssize_t got = read(fd->get(), &text[length], text.size() - length);
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  return text.substr(0, length);
}

// Waits until all ranks have reached this point.
bool meet(DirectoryStore& store, const std::string& where, Member rank, uint32_t ranks) {
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < ranks; r++) keys.push_back(where + "." + std::to_string(r));
  return store.set(keys[rank], "").ok() && store.multi_get(keys, 30 * kSecond).ok();
}

// Options of an engine that accepts clients of any user.
service::HostEngineOptions open_to_all() {
  service::HostEngineOptions options;
  options.mode = 0666;
  options.guardian = false;
  options.goodbye = 0;
  return options;
}

// Makes this rank run as another user than the engine, while its memory stays readable.
bool become_another_user() {
  return setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0 &&
         prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

void expect_copies(bool other_user, const std::string& setting, const std::string& method) {
  if (other_user && geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  EngineProcess engine(open_to_all());
  (void)chmod(std::filesystem::path(engine.path()).parent_path().c_str(), 0755);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    if (other_user && !become_another_user()) return false;
    auto group = make_group("copied", rank, 2, store, copied(engine, setting));
    if (!group || !work(*group, 3'000'001, 3) || !reduce_all_ways(*group, 200'001, 1)) return false;
    if (!work(*group, 10, 3) || !meet(store, "worked", rank, 2)) return false;
    if (rank == 0) {
      const std::string text = told(engine);
      EXPECT_THAT(text, HasSubstr("\"copies\":\"" + method + "\""));
      if (setting == "copy") {
        EXPECT_THAT(text, HasSubstr("\"arena_bytes\":0")) << "the rank has copied nothing";
        EXPECT_THAT(text, testing::Not(HasSubstr("\"pushed_bytes\":0")));
        EXPECT_THAT(text, testing::Not(HasSubstr("\"pulled_bytes\":0")));
      }
    }
    return meet(store, "told", rank, 2) && group->close(5 * kSecond).ok();
  }));
}

TEST(ClientCopy, TensorsOfTheSameUser) { expect_copies(false, "copy", "process_vm"); }
TEST(ClientCopy, TensorsOfAnotherUser) { expect_copies(true, "copy", "descriptor"); }
TEST(ClientCopy, AutoCopiesForTheSameUser) { expect_copies(false, "auto", "process_vm"); }

// For another user, `auto` leaves the copying to the client.
TEST(ClientCopy, AutoTakesSpansForAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  EngineProcess engine(open_to_all());
  (void)chmod(std::filesystem::path(engine.path()).parent_path().c_str(), 0755);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    if (!become_another_user()) return false;
    auto group = make_group("copied", rank, 2, store, copied(engine, "auto"));
    if (!group || !work(*group, 300'001, 2) || !meet(store, "worked", rank, 2)) return false;
    if (rank == 0) {
      EXPECT_THAT(told(engine), HasSubstr("\"pulled_bytes\":0"));
    }
    return meet(store, "told", rank, 2);
  }));
}

// A process whose memory no other process may read copies it itself, as with slots.
TEST(ClientCopy, MemoryThatCannotBeReachedIsCopiedByItsProcess) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  EngineProcess engine(open_to_all());
  (void)chmod(std::filesystem::path(engine.path()).parent_path().c_str(), 0755);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    if (!become_another_user() || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return false;
    testing::internal::CaptureStderr();
    auto group = make_group("copied", rank, 2, store, copied(engine));
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("engine_memory=copy: this process copies its tensors: engine of this "
                          "host: memory of process "));
    return group && work(*group, 300'001, 2);
  }));
}

Slice slice_of(std::byte* data, size_t length, std::shared_ptr<void> keepalive = nullptr) {
  return {std::make_shared<Region>(data, length, std::move(keepalive)), 0, length};
}

Status allgather_at(Group& group, std::byte* input, std::byte* output, size_t block,
                    Nanos timeout = 60 * kSecond, const std::shared_ptr<int>& keepalive = nullptr) {
  return wait_for([&](PostOptions options) {
    options.timeout = timeout;
    std::vector<Slice> outputs;
    for (size_t r = 0; r < group.size(); r++) {
      outputs.push_back(slice_of(output + r * block, block, keepalive));
    }
    return group.post_allgather(slice_of(input, block), outputs, std::move(options));
  });
}

std::byte* pages(size_t bytes) {
  return static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

// The stopped rank's operation ends on the other ranks, and its outputs are written while it is
// stopped.
TEST(ClientCopy, AStoppedRankIsServed) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("copied", rank, 2, store, copied(engine));
    if (!group || !work(*group, 1000, 2) || !meet(store, "worked", rank, 2)) return false;
    constexpr size_t kBlock = 4 << 20;
    std::vector<std::byte> data(2 * kBlock);
    fill(data, rank * kBlock, kBlock, 7 + rank);
    if (rank == 1) {
      const Status status = wait_for([&](PostOptions options) {
        const auto region = std::make_shared<Region>(data.data(), data.size(), nullptr);
        const auto block = [&](size_t r) { return Slice{region, r * kBlock, kBlock}; };
        auto posted = group->post_allgather(block(1), {block(0), block(1)}, std::move(options));
        EXPECT_TRUE(store
                        .set("posted", std::to_string(getpid()) + " " +
                                           std::to_string(reinterpret_cast<uint64_t>(data.data())))
                        .ok());
        return posted;
      });
      EXPECT_TRUE(status.ok()) << status.to_string();
    } else {
      const auto posted = store.multi_get({"posted"}, 30 * kSecond);
      if (!posted.ok()) return false;
      size_t end = 0;
      const pid_t other = std::stoi((*posted)[0], &end);
      const uint64_t at = std::stoull((*posted)[0].substr(end));
      kill(other, SIGSTOP);
      const Status status = allgather(*group, data);
      EXPECT_TRUE(status.ok()) << status.to_string();
      // The stopped rank's copy of this rank's block.
      std::vector<std::byte> seen(kBlock);
      const auto whole_there = [&] {
        const struct iovec here { seen.data(), kBlock };
        const struct iovec there { reinterpret_cast<void*>(at), kBlock };
        return process_vm_readv(other, &here, 1, &there, 1, 0) == ssize_t{kBlock} &&
               holds(seen, 0, kBlock, 7);
      };
      EXPECT_TRUE(until(whole_there, "the block in the memory of a rank that is stopped"));
      kill(other, SIGCONT);
    }
    EXPECT_TRUE(holds(data, 0, kBlock, 7) && holds(data, kBlock, kBlock, 8));
    return barrier(*group).ok() && group->close(5 * kSecond).ok();
  }));
}

TEST(ClientCopy, MemoryThatWentAwayIsNamedOnAllRanks) {
  for (const bool input : {true, false}) {
    EngineProcess engine;
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      auto group = make_group("copied", rank, 2, store, copied(engine));
      if (!group || !work(*group, 1000, 2) || !meet(store, "worked", rank, 2)) return false;
      constexpr size_t kBlock = 1 << 20;
      std::byte *const mine = pages(kBlock), *const all = pages(2 * kBlock);
      if (rank == 1 && input) munmap(mine + kBlock / 2, 4096);
      if (rank == 1 && !input) munmap(all, 4096);
      Status status = allgather_at(*group, mine, all, kBlock);
      // If the outputs are gone, the other rank may have got its result before.
      if (rank == 0 && status.ok()) status = allgather_at(*group, mine, all, kBlock);
      EXPECT_THAT(status.message(), HasSubstr("rank 1: memory of all_gather went away"));
      EXPECT_THAT(barrier(*group).message(), HasSubstr("failed earlier"));
      return true;
    }));
  }
}

// The engine's lanes and other clients continue. The error is raised after half of the operation's
// timeout.
TEST(ClientCopy, APageThatNeverComesIsNamedOnAllRanks) {
  for (const bool input : {true, false}) {
    EngineProcess engine;
    expect_all_good(run_ranks(4, 60, [&](Member rank, DirectoryStore& store) {
      if (rank >= 2) {  // another job
        auto beside = store.scoped("beside");
        auto group = make_group("beside", rank - 2, 2, beside, copied(engine));
        if (!group) return false;
        for (bool over = false; !over;) {
          over = store.multi_get({"named.0", "named.1"}, 0).ok();
          std::vector<std::byte> word(1, std::byte(over ? 1 : 0));
          if (!work(*group, 100'000, 1) || !broadcast(*group, word, 0).ok()) return false;
          over = word[0] == std::byte{1};
        }
        return true;
      }
      auto group = make_group("copied", rank, 2, store, copied(engine));
      if (!group || !work(*group, 1000, 2) || !meet(store, "worked", rank, 2)) return false;
      constexpr size_t kBlock = 64 << 10;
      std::byte *const mine = pages(kBlock), *const all = pages(2 * kBlock);
      HungPage page((input ? mine : all) + kBlock / 2);
      if (!page.hangs()) return store.set("named.0", "").ok() && store.set("named.1", "").ok();
      if (rank == 0) page.come();
      auto keepalive = std::make_shared<int>(0);
      const std::weak_ptr<int> kept = keepalive;
      Status status = allgather_at(*group, mine, all, kBlock, 4 * kSecond, keepalive);
      keepalive.reset();
      if (rank == 0 && status.ok()) status = barrier(*group, 4 * kSecond);
      EXPECT_THAT(status.message(), HasSubstr("rank 1: memory of all_gather does not answer for"));
      EXPECT_THAT(status.message(), HasSubstr("(swap, FUSE, userfaultfd)"));
      // Other groups of this process find that out at once.
      if (rank == 1) {
        EXPECT_THAT(told(engine), HasSubstr("\"copies\":\"hangs\""));
        // The operation ends before its post releases the memory.
        if (input) {
          EXPECT_TRUE(until([&] { return kept.expired(); }, "the inputs to be released"));
        } else {
          EXPECT_FALSE(kept.expired()) << "outputs may be written when the page comes";
        }
      }
      return store.set("named." + std::to_string(rank), "").ok() && meet(store, "end", rank, 2);
    }));
  }
}

TEST(ClientCopy, TheLimitOfCopiesIsNamedOnAllRanks) {
  service::TenantLimits limits;
  limits.bounce = uint64_t{2} << 20;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("copied", rank, 2, store, copied(engine));
    // Copies that are freed can be used again.
    if (!group || !work(*group, 100'000, 20) || !meet(store, "worked", rank, 2)) return false;
    std::vector<std::byte> large(size_t{4} << 20);
    const Status status = broadcast(*group, large, 0);
    EXPECT_THAT(status.message(), HasSubstr("engine's limit of 2M for copies of user"));
    EXPECT_THAT(status.message(), HasSubstr("(--bounce)"));
    return meet(store, "named", rank, 2);
  }));
}

// The rank ends at any moment of its copies, also by an exec, after which its memory belongs to
// another program.
TEST(ClientCopy, ARankThatEndsInTheMidstOfCopiesIsNamed) {
  for (const uint64_t seed : seeds(6)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    EngineProcess engine;
    const auto ends = run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      auto group = make_group("copied", rank, 2, store, copied(engine));
      if (!group || !work(*group, 1000, 1) || !meet(store, "worked", rank, 2)) return false;
      std::thread ender;
      if (rank == 1) {
        ender = std::thread([seed] {
          Rng rng(seed);
          std::this_thread::sleep_for(std::chrono::microseconds(rng.below(100'000)));
          if (seed % 2 == 0) execl("/bin/true", "true", nullptr);
          raise(SIGKILL);
        });
      }
      constexpr size_t kBlock = 5'000'000;
      std::vector<std::byte> data(2 * kBlock);
      Status status;
      for (size_t round = 0; status.ok(); round++) {
        fill(data, rank * kBlock, 1000, round + rank);
        status = allgather(*group, data);
        for (size_t r = 0; status.ok() && r < 2; r++) {
          if (!holds(data, r * kBlock, 1000, round + r)) return false;
        }
      }
      EXPECT_THAT(status.message(), HasSubstr("rank 1 is lost"));
      EXPECT_THAT(status.message(), HasSubstr("has ended"));
      return true;
    });
    EXPECT_EQ(ends[0].exit_code, 0);
    EXPECT_TRUE(ends[1].signal == SIGKILL || (seed % 2 == 0 && ends[1].exit_code == 0));
  }
}

// The engine may still write its outputs, so they are kept from other uses.
TEST(ClientCopy, AnEngineThatHangsMayWriteLate) {
  service::TenantLimits limits;
  limits.silence = kSecond;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("copied", rank, 2, store, copied(engine));
    if (!group || !work(*group, 1000, 2) || !meet(store, "worked", rank, 2)) return false;
    if (rank == 0) engine.stop();
    struct Kept {
      std::vector<std::byte> data = std::vector<std::byte>(2 << 20);
    };
    auto kept = std::make_shared<Kept>();
    const std::weak_ptr<Kept> seen = kept;
    std::byte* const data = kept->data.data();
    auto region = std::make_shared<Region>(data, kept->data.size(), std::move(kept));
    testing::internal::CaptureStderr();
    const Status status = wait_for([&](PostOptions options) {
      const Slice half{region, 0, 1 << 20}, other{region, 1 << 20, 1 << 20};
      return group->post_allgather(rank == 0 ? half : other, {half, other}, std::move(options));
    });
    const std::string logged = testing::internal::GetCapturedStderr();
    region.reset();
    EXPECT_FALSE(status.ok());
    if (status.message().find("has not run for") != std::string::npos) {
      EXPECT_THAT(logged, HasSubstr("could not be withdrawn from a lost engine"));
      EXPECT_EQ(seen.use_count(), 1);
    }
    return true;
  }));
  engine.signal(SIGCONT);
}

}  // namespace
}  // namespace mcast::test
