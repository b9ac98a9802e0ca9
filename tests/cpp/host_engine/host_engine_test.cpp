// The whole engine between ranks of one host that share memory, with ranks as processes: its
// operations, and ranks that end, stop or give up.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "base/rng.h"
#include "runtime/host_ranks.h"
#include "support/errors.h"
#include "support/ranks/arena_new.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

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
      const Status s = help_through(*group, LaneId::kMulticast, [&](PostOptions o) {
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

TEST(HostEngine, TensorsThatAreMappedAreTakenWhereTheyLie) {
  std::map<std::string, std::string> settings = kShared, other = kShared;
  other["engine_memory"] = "slots";
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    new_in_arenas();
    auto group = make_group("g", rank, 3, store, settings);
    if (!group || !work(*group, 700'001, 3) || !reduce_all_ways(*group, 300'001, 1)) return false;
    EXPECT_NE(group->stats().transport.find("which are mapped"), std::string::npos);
    EXPECT_GT(counter(*group, "shm_mapped_bytes"), uint64_t{10} << 20);
    EXPECT_EQ(counter(*group, "shm_direct_bytes"), 0u);
    auto scope = store.scoped("mixed");
    // If one rank does not want shared memory, no rank uses it.
    auto mixed = make_group("m", rank, 3, scope, rank == 1 ? other : settings);
    if (!mixed || !work(*mixed, 700'001, 1) || !reduce_all_ways(*mixed, 300'001, 1)) return false;
    EXPECT_EQ(counter(*mixed, "shm_mapped_bytes"), 0u);
    EXPECT_GT(counter(*mixed, "shm_direct_bytes"), 0u);
    return group->close(5 * kSecond).ok() && mixed->close(5 * kSecond).ok();
  }));
}

TEST(HostEngine, TheNetworkIsTakenWhereOneRankCannotShare) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    if (rank == 1) {  // too little for a segment or a mailbox
      struct rlimit limit {
        2048, 2048
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
      EXPECT_TRUE(is_error(s, ErrorId::rank_ended, {{"rank", "1"}}));
      EXPECT_FALSE(barrier(*group).ok());  // the group has failed
      return true;
    });
    EXPECT_EQ(ends[0].exit_code, 0);
    EXPECT_EQ(ends[1].signal, SIGKILL);
    EXPECT_EQ(ends[2].exit_code, 0);
  }
}

// Wherever in an operation it is killed, the others get exact bytes up to some call, then an error
// that names it.
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
          std::this_thread::sleep_for(std::chrono::microseconds(rng.below(30'000)));
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
        Status s = helps ? help_through(*group, LaneId::kReduce, reduce) : wait_for(reduce);
        for (size_t i = 0; s.ok() && i < count; i++) {
          if (sum[i] != static_cast<int32_t>(3 * round + 3)) return false;
        }
        if (s.ok()) s = allgather(*group, all);
        for (size_t r = 0; s.ok() && r < 3; r++) {
          if (!holds(all, r * count, count, round + r)) return false;
        }
        if (s.ok()) continue;
        EXPECT_TRUE(is_error(s, ErrorId::rank_ended, {{"rank", "1"}}));
        return true;
      }
    });
    EXPECT_EQ(ends[0].exit_code, 0);
    EXPECT_EQ(ends[1].signal, SIGKILL);
    EXPECT_EQ(ends[2].exit_code, 0);
  }
}

// A rank that continues before the limit is not lost, and all bytes are right.
TEST(HostEngine, ARankThatIsStoppedForAMomentIsWaitedFor) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = host_group("paused", rank, 3, store);
    if (!group || !barrier(*group).ok()) return false;
    for (int i = 0; i < 8; i++) {
      if (rank == 1) {  // a child resumes it as soon as it is stopped
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
    EXPECT_TRUE(is_error(s, ErrorId::rank_silent, {{"rank", "2"}, {"limit", "1.0 s"}}));
    if (rank == 0) kill(victim, SIGCONT);
    return true;
  }));
}

// Interrupts every waiting thread by a signal handler, like a profiler, but faster.
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
      const Status s = help_through(*group, LaneId::kReduce, [&](PostOptions o) {
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
        rank == 0 ? help_through(*group, LaneId::kMulticast,
                                 [&](PostOptions o) { return group->post_barrier(std::move(o)); })
                  : barrier(*group);
    EXPECT_TRUE(is_error(s, ErrorId::aborted, {{"rank", "2"}, {"reason", "enough"}}));
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
      // Aborted or closed: the other rank may detect first that a lane was left.
      const Status s = group->give_up(3600 * kSecond);
      EXPECT_TRUE(s.code() == Code::kAborted || s.code() == Code::kClosed) << s.to_string();
      return true;
    }
    // One operation that it had called, and one that it had not.
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
  // Its published data stays: no rank needs its process.
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
    EXPECT_TRUE(
        is_error(barrier(*group), ErrorId::rank_left_before, {{"rank", "0"}, {"sequence", "1"}}));
    return true;
  }));
}

}  // namespace
}  // namespace mcast::test
