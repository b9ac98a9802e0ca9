// The whole engine between ranks of one host that share memory, ranks as processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <future>
#include <thread>

#include "base/rng.h"
#include "engine/clock.h"
#include "programs.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

const std::map<std::string, std::string> kShared{{"shared_memory", "auto"},
                                                 {"liveness_limit", "1000"}};

std::shared_ptr<Group> host_group(const std::string& name, Member rank, uint32_t ranks,
                                  KeyValueStore& store) {
  auto group = make_group(name, rank, ranks, store, kShared);
  if (group) {
    EXPECT_EQ(group->stats().path, "shared memory") << group->stats().reason;
  }
  return group;
}

// As a caller that waits: helps until it is over.
Status help_through(Group& group, size_t lane,
                    const std::function<Result<Sequence>(PostOptions)>& post) {
  auto over = std::make_shared<std::atomic<bool>>(false);
  auto status = std::make_shared<Status>();
  PostOptions options;
  options.timeout = 20 * kSecond;
  options.done = [over, status](const Status& s) {
    *status = s;
    over->store(true);
  };
  if (auto posted = post(std::move(options)); !posted.ok()) return posted.status();
  while (!over->load()) {
    if (!group.help(
            lane, [&] { return over->load(); }, monotonic_now() + 100 * kMilli)) {
      std::this_thread::yield();
    }
  }
  return *status;
}

TEST(HostEngine, CallersDoTheirOwnWork) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 3, store);
    if (!group) return false;
    for (int round = 0; round < 300; round++) {
      const size_t block = round % 10 == 0 ? 200'000 : 100;
      std::vector<std::byte> all(block * 3);
      fill(all, rank * block, block, round + rank);
      auto region = std::make_shared<Region>(all.data(), all.size(), nullptr);
      std::vector<Slice> outputs;
      for (size_t r = 0; r < 3; r++) outputs.push_back({region, r * block, block});
      const Status s = help_through(*group, 0, [&](PostOptions o) {
        return group->post_allgather(outputs[rank], outputs, std::move(o));
      });
      EXPECT_TRUE(s.ok()) << s.to_string();
      for (size_t r = 0; r < 3; r++) EXPECT_TRUE(holds(all, r * block, block, round + r));
      if (testing::Test::HasFailure()) return false;
    }
    return group->close(5 * kSecond).ok();
  }));
}

TEST(HostEngine, NothingCrossesASocket) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 2, store);
    if (!group || !work(*group, 300'000, 3) || !reduce_all_ways(*group, 70'000, 1)) return false;
    EXPECT_EQ(counter(*group, "frames_sent") + counter(*group, "datagrams_sent"), 0u);
    EXPECT_GT(counter(*group, "shm_direct_bytes"), 0u);
    auto scope = store.scoped("slots");
    auto slots = make_group("s", rank, 2, scope, {{"shared_memory", "slots"}});
    if (!slots || !work(*slots, 300'000, 3) || !reduce_all_ways(*slots, 70'000, 1)) return false;
    EXPECT_EQ(counter(*slots, "shm_direct_bytes"), 0u);
    EXPECT_GT(counter(*slots, "shm_slot_bytes"), 0u);
    return true;
  }));
}

TEST(HostEngine, TheNetworkIsTakenWhereOneRankCannotShare) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    if (rank == 1) {  // too little for a segment or a mailbox
      struct rlimit limit {
        1024, 1024
      };
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    auto group = make_group("g", rank, 3, store, kShared);
    if (!group) return false;
    EXPECT_EQ(group->stats().path, "multicast");
    return work(*group, 10'000, 3);
  }));
}

TEST(HostEngine, AKilledRankIsNamedByTheOthers) {
  for (const size_t bytes : {size_t{300}, size_t{3} << 20}) {
    const auto ends = run_ranks(3, 30, [&](Member rank, DirectoryStore& store) {
      auto group = host_group("victim", rank, 3, store);
      if (!group || !barrier(*group).ok()) return false;
      if (rank == 1) raise(SIGKILL);
      std::vector<std::byte> data(3 * bytes);
      const Status s = allgather(*group, data);
      EXPECT_EQ(s.code(), Code::kPeerLost) << s.to_string();
      EXPECT_NE(s.message().find("rank 1 is lost (its process "), std::string::npos)
          << s.to_string();
      EXPECT_FALSE(barrier(*group).ok());  // poisoned
      return true;
    });
    EXPECT_EQ(ends[0].exit_code, 0);
    EXPECT_EQ(ends[1].signal, SIGKILL);
    EXPECT_EQ(ends[2].exit_code, 0);
  }
}

// Wherever in an operation it is: the others get exact bytes up to some call, then its name.
TEST(HostEngine, ARankKilledAtAnyMomentIsNamed) {
  for (const uint64_t seed : seeds(12)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    const auto ends = run_ranks(3, 30, [&](Member rank, DirectoryStore& store) {
      auto group = host_group("victim", rank, 3, store);
      if (!group || !barrier(*group).ok()) return false;
      std::thread killer;
      if (rank == 1) {
        killer = std::thread([seed] {
          Rng rng(seed);
          for (uint64_t i = rng.next() % 3000; i > 0; i--) std::this_thread::yield();
          raise(SIGKILL);
        });
      }
      Rng rng(seed + 100);
      for (size_t round = 0;; round++) {
        static constexpr size_t kCounts[] = {10, 20'000, 300'000};
        const size_t count = kCounts[rng.next() % std::size(kCounts)];
        const bool helps = rng.next() % 2 == 0;
        std::vector<int32_t> mine(count, static_cast<int32_t>(round + rank)), sum(count);
        std::vector<std::byte> all(3 * count);
        fill(all, rank * count, count, round + rank);
        const auto reduce = [&](PostOptions o) {
          return group->post_allreduce(whole(mine), whole(sum), {Element::kInt32, Reduction::kSum},
                                       std::move(o));
        };
        Status s = helps ? help_through(*group, 1, reduce) : wait_for(reduce);
        for (size_t i = 0; s.ok() && i < count; i++) {
          if (sum[i] != static_cast<int32_t>(3 * round + 3)) return false;
        }
        if (s.ok()) s = allgather(*group, all);
        for (size_t r = 0; s.ok() && r < 3; r++) {
          if (!holds(all, r * count, count, round + r)) return false;
        }
        if (s.ok()) continue;
        EXPECT_EQ(s.code(), Code::kPeerLost) << s.to_string();
        EXPECT_NE(s.message().find("rank 1 is lost"), std::string::npos) << s.to_string();
        return true;
      }
    });
    EXPECT_EQ(ends[0].exit_code, 0);
    EXPECT_EQ(ends[1].signal, SIGKILL);
    EXPECT_EQ(ends[2].exit_code, 0);
  }
}

// Nobody is lost who comes back before the limit, and no byte is wrong.
TEST(HostEngine, ARankThatIsStoppedForAMomentIsWaitedFor) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("paused", rank, 3, store);
    if (!group || !barrier(*group).ok()) return false;
    for (int i = 0; i < 8; i++) {
      if (rank == 1) {  // a child lets it go on as soon as it is stopped
        const pid_t self = getpid();
        const pid_t child = fork();
        if (child == 0) {
          std::string text;
          while (text.find(") T ") == std::string::npos) {
            std::ifstream in("/proc/" + std::to_string(self) + "/stat");
            std::getline(in, text);
          }
          kill(self, SIGCONT);
          _exit(0);
        }
        std::thread stopper([self] { kill(self, SIGSTOP); });
        EXPECT_TRUE(work(*group, 150'000, 3));
        stopper.join();
        waitpid(child, nullptr, 0);
      } else if (!work(*group, 150'000, 3)) {
        return false;
      }
      if (!reduce_all_ways(*group, 30'000, i)) return false;
    }
    return true;
  }));
}

TEST(HostEngine, AStoppedRankIsNamedAndLearnsIt) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("stopped", rank, 3, store);
    if (!group || !barrier(*group).ok()) return false;
    auto pids = store.scoped("pid");
    if (rank == 2) {
      EXPECT_TRUE(pids.set("2", std::to_string(getpid())).ok());
      raise(SIGSTOP);
    }
    pid_t victim = 0;
    if (rank == 0) {
      auto text = pids.multi_get({"2"}, 10 * kSecond);
      if (!text.ok()) return false;
      victim = std::stoi(text->at(0));
      std::string state;
      while (state != "T") {
        std::ifstream in("/proc/" + std::to_string(victim) + "/stat");
        std::string word;
        in >> word >> word >> state;
      }
    }
    const Status s = barrier(*group);
    EXPECT_EQ(s.code(), Code::kPeerLost) << s.to_string();
    EXPECT_NE(s.message().find("rank 2 has been silent for"), std::string::npos) << s.to_string();
    if (rank == 0) kill(victim, SIGCONT);
    return true;
  }));
}

// As a profiler does it, only faster: whatever a waiting thread does is interrupted by a handler.
TEST(HostEngine, SignalsThatAreHandledEndNothing) {
  constexpr uint32_t kRanks = 4;
  expect_all_good(run_ranks(kRanks, 120, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("interrupted", rank, kRanks, store);
    if (!group) return false;
    static std::atomic<uint64_t> handled{0};
    struct sigaction handler {};
    handler.sa_handler = [](int) { handled++; };  // and no SA_RESTART
    sigaction(SIGPROF, &handler, nullptr);
    struct sigevent event {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGPROF;
    timer_t timer{};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return false;
    const struct itimerspec often {
      {0, 20'000}, { 0, 20'000 }
    };
    timer_settime(timer, 0, &often, nullptr);
    for (int round = 0; round < 500; round++) {
      const size_t count = round % 10 == 0 ? 200'000 : 100;
      std::vector<int32_t> mine(count, round + rank), sum(count);
      const Status s = help_through(*group, 1, [&](PostOptions o) {
        return group->post_allreduce(whole(mine), whole(sum), {Element::kInt32, Reduction::kSum},
                                     std::move(o));
      });
      EXPECT_TRUE(s.ok()) << "round " << round << ": " << s.to_string();
      if (!s.ok()) return false;
      const std::vector<int32_t> exact(count, 4 * round + 6);
      EXPECT_TRUE(sum == exact);
    }
    timer_delete(timer);
    EXPECT_GT(handled.load(), 1000u);
    return true;
  }));
}

TEST(HostEngine, AbortReachesARankThatWaitsAndOneThatHasNotCalled) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 3, store);
    if (!group || !barrier(*group).ok()) return false;
    if (rank == 2) group->abort("enough");
    const Status s =
        rank == 0 ? help_through(*group, 0,
                                 [&](PostOptions o) { return group->post_barrier(std::move(o)); })
                  : barrier(*group);
    EXPECT_EQ(s.code(), Code::kAborted) << s.to_string();
    EXPECT_NE(s.message().find("aborted by rank 2: enough"), std::string::npos) << s.to_string();
    return true;
  }));
}

TEST(HostEngine, GivingUpFailsWhatIsInFlightEverywhere) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 2, store);
    if (!group || !barrier(*group).ok()) return false;
    if (rank == 0) {
      PostOptions options;
      EXPECT_TRUE(group->post_barrier(std::move(options)).ok());
      // Aborted, or closed: the other rank may be the first to see that a lane was left.
      const Status s = group->give_up(3600 * kSecond);
      EXPECT_TRUE(s.code() == Code::kAborted || s.code() == Code::kClosed) << s.to_string();
      return true;
    }
    // One that it had called and one that it had not.
    std::vector<int32_t> data(10);
    const Slice slice = whole(data);
    Status s = wait_for([&](PostOptions o) {
      return group->post_allreduce(slice, slice, {Element::kInt32, Reduction::kSum, 1},
                                   std::move(o));
    });
    EXPECT_FALSE(s.ok());
    EXPECT_NE(s.message().find("rank 0"), std::string::npos) << s.to_string();
    return true;
  }));
}

TEST(HostEngine, ARootMayEndBeforeTheOthersCall) {
  // What it had published stays: nobody needs its process.
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 2, store);
    if (!group) return false;
    std::vector<std::byte> data(500);
    if (rank == 0) {
      fill(data, 0, 500, 3);
      EXPECT_TRUE(broadcast(*group, data, 0).ok());
      EXPECT_TRUE(store.set("pid", std::to_string(getpid())).ok());
      return group->close(5 * kSecond).ok();
    }
    auto pid = store.multi_get({"pid"}, 10 * kSecond);
    if (!pid.ok()) return false;
    const std::string stat = "/proc/" + pid->at(0) + "/stat", zombie = ") Z ";
    for (std::string text; text.find(zombie) == std::string::npos;) {
      std::ifstream in(stat);
      if (!std::getline(in, text)) break;
    }
    EXPECT_TRUE(broadcast(*group, data, 0).ok());
    EXPECT_TRUE(holds(data, 0, 500, 3));
    const Status s = barrier(*group);
    EXPECT_NE(s.message().find("rank 0 left the group"), std::string::npos) << s.to_string();
    return true;
  }));
}

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
    const auto descriptors = [] {
      size_t n = 0;
      for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1;
      return n;
    };
    size_t before = 0, mapped = 0;
    for (int i = 0; i < 40; i++) {
      auto scope = store.scoped("i" + std::to_string(i));
      auto group = host_group("again", rank, 2, scope);
      if (!group || !work(*group, 100'000, 1)) return false;
      if (!group->close(5 * kSecond).ok()) return false;
      group.reset();
      if (i == 2) {
        before = descriptors();
        mapped = mappings();
      }
    }
    // The host threads may still hold the last group for a moment. A leak would be 37 rounds'
    // worth.
    EXPECT_LE(descriptors(), before + 3);
    EXPECT_LE(mappings(), mapped + 3);
    return true;
  }));
}

// A peer's process costs descriptors once, however many groups it shares.
TEST(HostEngine, GroupsOfTheSameProcessesShareDescriptors) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    const auto descriptors = [] {
      size_t n = 0;
      for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1;
      return n;
    };
    std::vector<std::shared_ptr<Group>> groups;
    size_t before = 0;
    for (int i = 0; i < 20; i++) {
      auto scope = store.scoped("i" + std::to_string(i));
      groups.push_back(host_group("g" + std::to_string(i), rank, 3, scope));
      if (!groups.back() || !work(*groups.back(), 100'000, 1)) return false;
      if (i == 0) before = descriptors();
    }
    EXPECT_EQ(descriptors(), before);
    return true;
  }));
}

TEST(HostEngine, TheNetworkIsTakenBetweenUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    if (rank == 1) {  // may trace nobody any more; the others, being root, still may trace it
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
      // Without the right to do so the numbers agree, and memory is shared.
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

// Closing must not depend on a thread that keeps helping with what will never end.
TEST(HostEngine, GivingUpReachesAThreadThatHelps) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("g", rank, 2, store);
    if (!group || !barrier(*group).ok()) return false;
    if (rank == 1) {  // calls something only when the other has gone
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

// Threads that post, help, wait by callback, and groups that come and go, on both lanes at once.
TEST(HostEngine, ManyThreadsAndGroupsAtOnce) {
  constexpr uint32_t kRanks = 3;
  constexpr int kGroups = 4, kRounds = 40;
  expect_all_good(run_ranks(kRanks, 60, [&](Member rank, DirectoryStore& store) {
    std::vector<std::thread> threads;
    std::atomic<bool> good{true};
    for (int g = 0; g < kGroups; g++) {
      threads.emplace_back([&, g] {
        for (int life = 0; life < 3; life++) {
          auto scope = store.scoped("g" + std::to_string(g) + "." + std::to_string(life));
          auto group = host_group("g" + std::to_string(g), rank, kRanks, scope);
          if (!group) return good.store(false);
          // The lanes have orders of their own: one thread for each.
          std::thread reducing([&] {
            if (!reduce_all_ways(*group, 10 + 7'000 * static_cast<size_t>(g), life)) {
              good.store(false);
            }
          });
          std::deque<std::pair<std::vector<std::byte>, std::future<Status>>> flying;
          for (int round = 0; round < kRounds; round++) {
            static constexpr size_t kBlocks[] = {1, 5'000, 65'536, 65'537, 300'000};
            const size_t block = kBlocks[static_cast<size_t>(round + g) % std::size(kBlocks)];
            const auto salt = static_cast<size_t>(1000 * g + round);
            auto& [all, end] = flying.emplace_back();
            all.resize(block * kRanks);
            fill(all, rank * block, block, salt + rank);
            auto region = std::make_shared<Region>(all.data(), all.size(), nullptr);
            std::vector<Slice> outputs;
            for (size_t r = 0; r < kRanks; r++) outputs.push_back({region, r * block, block});
            auto promise = std::make_shared<std::promise<Status>>();
            auto over = std::make_shared<std::atomic<bool>>(false);
            end = promise->get_future();
            PostOptions options;
            options.done = [promise, over](const Status& s) {
              over->store(true);
              promise->set_value(s);
            };
            const Slice input = outputs[rank];
            EXPECT_TRUE(group->post_allgather(input, outputs, std::move(options)).ok());
            if (round % 3 == 0) {
              group->help(
                  LaneId::kMulticast, [&] { return over->load(); }, monotonic_now() + 50 * kMilli);
            }
            while (flying.size() > 4 || (round == kRounds - 1 && !flying.empty())) {
              const Status s = flying.front().second.get();
              const auto& done = flying.front().first;
              const size_t size = done.size() / kRanks;
              const size_t first = salt + 1 - flying.size();
              bool exact = s.ok();
              for (size_t r = 0; exact && r < kRanks; r++) {
                exact = holds(done, r * size, size, first + r);
              }
              EXPECT_TRUE(exact) << s.to_string() << " round " << first;
              if (!exact) good.store(false);
              flying.pop_front();
            }
          }
          reducing.join();
          if (!group->close(10 * kSecond).ok()) good.store(false);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return good.load();
  }));
}

}  // namespace
}  // namespace mcast::test
