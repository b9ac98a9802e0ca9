// The whole engine between ranks of one host that share memory, with ranks as processes: forks,
// leftovers, memory that cannot be shared, and many threads at once.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <future>
#include <thread>

#include "base/rng.h"
#include "runtime/host_ranks.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

TEST(HostEngine, AForkedChildHasNoneOfIt) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 2, store);
    if (!group || !barrier(*group).ok()) return false;
    const pid_t child = fork();
    if (child == 0) {
      EXPECT_EQ(barrier(*group).code(), Code::kClosed);
      EXPECT_FALSE(group->help(
          LaneId::kMulticast, [] { return false; }, monotonic_now() + kSecond));
      (void)group->stats();
      group.reset();
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return work(*group, 100'000, 3);
  }));
}

size_t mappings() {
  std::ifstream in("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(in, line);) n += line.find("mcast-") != std::string::npos;
  return n;
}

TEST(HostEngine, ReInitLeaksNothing) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    size_t before = 0, mapped = 0;
    for (int i = 0; i < 40; i++) {
      auto scope = store.scoped("i" + std::to_string(i));
      auto group = host_group("again", rank, 2, scope);
      if (!group || !work(*group, 100'000, 1)) return false;
      if (!group->close(5 * kSecond).ok()) return false;
      group.reset();
      if (i == 2) {
        before = open_descriptors();
        mapped = mappings();
      }
    }
    // The host threads may still hold the last group for a moment. A leak would be that of 37
    // rounds.
    EXPECT_LE(open_descriptors(), before + 3);
    EXPECT_LE(mappings(), mapped + 3);
    return true;
  }));
}

// A peer's process costs descriptors only once, however many groups it shares.
TEST(HostEngine, GroupsOfTheSameProcessesShareDescriptors) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    std::vector<std::shared_ptr<Group>> groups;
    size_t before = 0;
    for (int i = 0; i < 20; i++) {
      auto scope = store.scoped("i" + std::to_string(i));
      groups.push_back(host_group("g" + std::to_string(i), rank, 3, scope));
      if (!groups.back() || !work(*groups.back(), 100'000, 1)) return false;
      if (i == 0) before = open_descriptors();
    }
    EXPECT_EQ(open_descriptors(), before);
    return true;
  }));
}

TEST(HostEngine, TheNetworkIsTakenBetweenUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    if (rank == 1) {  // may not trace others any more; root still may trace it
      EXPECT_EQ(setresgid(65534, 65534, 65534), 0);
      EXPECT_EQ(setresuid(65534, 65534, 65534), 0);
    }
    auto group = make_group("g", rank, 3, store, kShared);
    if (!group) return false;
    EXPECT_EQ(group->stats().path, "multicast");
    return work(*group, 10'000, 3);
  }));
}

TEST(HostEngine, TheNetworkIsTakenBetweenProcessNamespaces) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    if (rank == 1) {
      // Without the permission, the process ids agree and memory is shared.
      if (unshare(CLONE_NEWPID) != 0) return store.set("apart", "no").ok();
      const pid_t child = fork();
      if (child > 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return status == 0;
      }
      alarm(60);
      EXPECT_EQ(getpid(), 1);
      EXPECT_TRUE(store.set("apart", "yes").ok());
    }
    auto apart = store.multi_get({"apart"}, 20 * kSecond);
    if (!apart.ok() || apart->at(0) != "yes") return apart.ok();
    auto group = make_group("g", rank, 2, store, kShared);
    if (!group) return false;
    EXPECT_EQ(group->stats().path, "multicast");
    return work(*group, 100'000, 2);
  }));
}

// Closing must not depend on a thread that keeps helping with an operation that never ends.
TEST(HostEngine, GivingUpReachesAThreadThatHelps) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 2, store);
    if (!group || !barrier(*group).ok()) return false;
    if (rank == 1) {  // calls nothing before the other has left
      while (!store.multi_get({"gone"}, kSecond).ok()) {
      }
      EXPECT_FALSE(barrier(*group).ok());
      return true;
    }
    std::atomic<bool> driving{false}, over{false};
    Status seen;
    std::thread waiter([&] {
      PostOptions options;
      options.done = [&](const Status& s) {
        seen = s;
        over.store(true);
      };
      EXPECT_TRUE(group->post_barrier(std::move(options)).ok());
      while (!over.load()) {
        group->help(
            LaneId::kMulticast,
            [&] {
              driving.store(true);
              return over.load();
            },
            kNever);
      }
    });
    while (!driving.load()) std::this_thread::yield();
    EXPECT_EQ(group->give_up(kSecond).code(), Code::kAborted);
    waiter.join();
    EXPECT_EQ(seen.code(), Code::kClosed) << seen.to_string();
    EXPECT_TRUE(store.set("gone", "1").ok());
    return true;
  }));
}

// All-gathers of one group, several of which are in flight.
class FlyingAllgathers {
 public:
  FlyingAllgathers(Group& group, Member rank, uint32_t ranks)
      : group_(group), rank_(rank), ranks_(ranks) {}

  // `salt` distinguishes this call's contents from those of others. `help`: also helps the lane for
  // a while.
  void post(size_t block, size_t salt, bool help) {
    Call& call = flying_.emplace_back();
    call.block = block;
    call.salt = salt;
    call.memory.resize(block * ranks_);
    fill(call.memory, rank_ * block, block, salt + rank_);
    auto region = std::make_shared<Region>(call.memory.data(), call.memory.size(), nullptr);
    std::vector<Slice> outputs;
    for (size_t r = 0; r < ranks_; r++) outputs.push_back({region, r * block, block});
    auto promise = std::make_shared<std::promise<Status>>();
    auto over = std::make_shared<std::atomic<bool>>(false);
    call.end = promise->get_future();
    PostOptions options;
    options.done = [promise, over](const Status& s) {
      over->store(true);
      promise->set_value(s);
    };
    const Slice input = outputs[rank_];
    EXPECT_TRUE(group_.post_allgather(input, outputs, std::move(options)).ok());
    if (!help) return;
    group_.help(
        LaneId::kMulticast, [&] { return over->load(); }, monotonic_now() + 50 * kMilli);
  }

  // Waits for the oldest until at most `most` are in flight. Returns whether all were exact.
  bool wait(size_t most) {
    bool good = true;
    for (; flying_.size() > most; flying_.pop_front()) {
      Call& call = flying_.front();
      const Status s = call.end.get();
      bool exact = s.ok();
      for (size_t r = 0; exact && r < ranks_; r++) {
        exact = holds(call.memory, r * call.block, call.block, call.salt + r);
      }
      EXPECT_TRUE(exact) << s.to_string() << " call " << call.salt;
      good = good && exact;
    }
    return good;
  }

 private:
  struct Call {
    size_t block = 0, salt = 0;
    std::vector<std::byte> memory;
    std::future<Status> end;
  };

  Group& group_;
  Member rank_;
  uint32_t ranks_;
  std::deque<Call> flying_;
};

// A group's life: one thread posts reductions and another all-gathers, since each lane has its own
// order.
bool both_lanes(Group& group, size_t g, int life, Member rank, uint32_t ranks) {
  constexpr size_t kRounds = 40;
  std::atomic<bool> good{true};
  std::thread reducing([&] {
    if (!reduce_all_ways(group, 10 + 7'000 * g, life)) good.store(false);
  });
  FlyingAllgathers calls(group, rank, ranks);
  for (size_t round = 0; round < kRounds; round++) {
    static constexpr size_t kBlocks[] = {1, 5'000, 65'536, 65'537, 300'000};
    calls.post(kBlocks[(round + g) % std::size(kBlocks)], 1000 * g + round, round % 3 == 0);
    if (!calls.wait(4)) good.store(false);
  }
  if (!calls.wait(0)) good.store(false);
  reducing.join();
  return group.close(10 * kSecond).ok() && good.load();
}

// Threads that post, help and wait by callback, and groups that are made and closed, on both lanes
// at once.
TEST(HostEngine, ManyThreadsAndGroupsAtOnce) {
  constexpr uint32_t kRanks = 3;
  constexpr size_t kGroups = 4;
  expect_all_good(run_ranks(kRanks, 60, [&](Member rank, DirectoryStore& store) {
    std::vector<std::thread> threads;
    std::atomic<bool> good{true};
    for (size_t g = 0; g < kGroups; g++) {
      threads.emplace_back([&, g] {
        for (int life = 0; life < 3; life++) {
          auto scope = store.scoped("g" + std::to_string(g) + "." + std::to_string(life));
          auto group = host_group("g" + std::to_string(g), rank, kRanks, scope);
          if (!group) return good.store(false);
          if (!both_lanes(*group, g, life, rank, kRanks)) good.store(false);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return good.load();
  }));
}

}  // namespace
}  // namespace mcast::test
