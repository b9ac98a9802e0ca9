// Several ranks of a host at one engine: they find each other's memory in it, and no other memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine_process.h"
#include "host_engine/client/client_link.h"
#include "support/ranks/arena_new.h"
#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Settings = std::map<std::string, std::string>;

Settings at(const EngineProcess& engine, const std::string& shared_memory = "auto") {
  return {{"engine", engine.setting()}, {"shared_memory", shared_memory}};
}

// Waits for all ranks, so that the end of one does not disturb another's creation.
bool all_here(DirectoryStore& store, const std::string& what, Member rank, uint32_t ranks) {
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < ranks; r++) keys.push_back(what + std::to_string(r));
  return store.set(keys[rank], "").ok() && store.multi_get(keys, 30 * kSecond).ok();
}

void one_host_moves_in_memory(bool arenas) {
  EngineProcess engine;
  expect_all_good(run_ranks(3, 90, [&](Member rank, DirectoryStore& store) {
    if (arenas) new_in_arenas();
    auto group = make_group("near", rank, 3, store, at(engine));
    if (!group) return false;
    EXPECT_EQ(group->stats().path, "shared memory") << group->stats().reason;
    EXPECT_THAT(group->stats().transport, HasSubstr("where their engine has it mapped"));
    for (const size_t block : {size_t{1}, size_t{5000}, size_t{700'001}, size_t{5} << 20}) {
      if (!work(*group, block, 2)) return false;
    }
    if (!reduce_all_ways(*group, 10, 1) || !reduce_all_ways(*group, 300'001, 2)) return false;
    EXPECT_GT(counter(*group, "shm_mapped_bytes"), uint64_t{20} << 20);
    EXPECT_EQ(counter(*group, "shm_direct_bytes"), 0u)
        << "the engine traces nobody, itself neither";
    EXPECT_EQ(counter(*group, "frames_sent") + counter(*group, "datagrams_sent"), 0u);
    return group->close(5 * kSecond).ok() && all_here(store, "closed", rank, 3);
  }));
}

TEST(EngineRanks, RanksOfOneHostMoveDataInMemory) { one_host_moves_in_memory(false); }
TEST(EngineRanks, AndInTensorsThatTheEngineMaps) { one_host_moves_in_memory(true); }

TEST(EngineRanks, SlotsWhereTheSettingSaysSo) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("slots", rank, 2, store, at(engine, "slots"));
    if (!group || !work(*group, 700'001, 2) || !reduce_all_ways(*group, 300'001, 2)) return false;
    EXPECT_EQ(group->stats().path, "shared memory");
    EXPECT_EQ(counter(*group, "shm_mapped_bytes"), 0u);
    EXPECT_GT(counter(*group, "shm_slot_bytes"), 0u);
    return group->close(5 * kSecond).ok() && all_here(store, "closed", rank, 2);
  }));
}

// As while an engine is replaced: each engine has its own directory.
TEST(EngineRanks, RanksOfTwoEnginesTakeTheNetwork) {
  EngineProcess first, second;
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("apart", rank, 3, store, at(rank == 1 ? second : first));
    if (!group) return false;
    EXPECT_EQ(group->stats().path, "multicast");
    return work(*group, 100'000, 2) && reduce_all_ways(*group, 50'000, 1) &&
           all_here(store, "over", rank, 3);
  }));
}

TEST(EngineRanks, SoDoesOneWithoutAnEngine) {
  EngineProcess engine;
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    Settings settings = at(engine);
    if (rank == 2) settings["engine"] = "inproc";
    auto group = make_group("mixed", rank, 3, store, settings);
    if (!group) return false;
    EXPECT_EQ(group->stats().path, "multicast");
    return work(*group, 100'000, 2) && reduce_all_ways(*group, 50'000, 1) &&
           all_here(store, "over", rank, 3);
  }));
}

TEST(EngineRanks, AKilledRankIsNamedByTheOthers) {
  EngineProcess engine;
  const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("victim", rank, 3, store, at(engine));
    if (!group || !work(*group, 1000, 2) || !all_here(store, "worked", rank, 3)) return false;
    if (rank == 1) raise(SIGKILL);
    std::vector<std::byte> data(size_t{3} << 20);
    const Nanos start = monotonic_now();
    Status status;
    while ((status = allgather(*group, data)).ok() && monotonic_now() - start < 10 * kSecond) {
    }
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("rank 1 is lost: its process"));
    EXPECT_FALSE(barrier(*group).ok());
    // The engine and its other ranks continue.
    auto scope = store.scoped("next");
    const Member number = rank == 0 ? 0 : 1;
    auto next = make_group("next", number, 2, scope, at(engine));
    return next && work(*next, 700'001, 2) && all_here(scope, "over", number, 2);
  });
  EXPECT_EQ(ends[0].exit_code, 0);
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_EQ(ends[2].exit_code, 0);
}

// Memory of a rank that is gone stays mapped while other ranks may be reading it.
TEST(EngineRanks, ARankKilledAmidTransfersHarmsNobodyElse) {
  EngineProcess engine;
  for (int round = 0; round < 4; round++) {
    const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      new_in_arenas();
      auto group = make_group("amid", rank, 3, store, at(engine));
      if (!group || !all_here(store, "made", rank, 3)) return false;
      if (rank == 1 && fork() == 0) {
        usleep(static_cast<useconds_t>(20'000 + round * 7'000));
        kill(getppid(), SIGKILL);
        _exit(0);
      }
      std::vector<std::byte> data(size_t{24} << 20);
      const Nanos start = monotonic_now();
      Status status;
      while ((status = allgather(*group, data)).ok() && monotonic_now() - start < 20 * kSecond) {
      }
      EXPECT_THAT(status.message(), HasSubstr("rank 1 is lost"));
      return !status.ok();
    });
    EXPECT_EQ(ends[0].exit_code, 0);
    EXPECT_EQ(ends[1].signal, SIGKILL);
    EXPECT_EQ(ends[2].exit_code, 0);
  }
  EXPECT_FALSE(EngineProcess::has_ended(engine.pid()));
}

// The engine receives, repairs and confirms for a stopped rank; with `copy` it also writes its
// memory. Rank 1 is stopped after its post until the others are done.
void a_stopped_rank(const Settings& more) {
  constexpr Member kRanks = 4;
  EngineProcess engine;
  expect_all_good(run_ranks(kRanks, 60, [&](Member rank, DirectoryStore& store) {
    Settings settings = more;
    settings.merge(at(engine));
    if (settings["engine_memory"] == "map") new_in_arenas();
    auto group = make_group("stopped", rank, kRanks, store, settings);
    if (!group || !work(*group, 1000, 2)) return false;
    constexpr size_t kBlock = 2 << 20;
    std::vector<std::byte> data(kRanks * kBlock);
    fill(data, rank * kBlock, kBlock, 7 + rank);
    std::vector<int32_t> addends(kBlock / 4), sums(kBlock / 4);
    for (size_t i = 0; i < addends.size(); i++) addends[i] = static_cast<int32_t>(i + rank);
    const auto region = std::make_shared<Region>(data.data(), data.size(), nullptr);
    std::vector<Slice> blocks;
    for (Member r = 0; r < kRanks; r++) blocks.push_back({region, r * kBlock, kBlock});
    const auto both = [&] {
      std::vector<std::future<Status>> ends;
      ends.push_back(begin([&](PostOptions o) {
        return group->post_allgather(blocks[rank], blocks, std::move(o));
      }));
      ends.push_back(begin([&](PostOptions o) {
        return group->post_allreduce(whole(addends), whole(sums),
                                     {Element::kInt32, Reduction::kSum, 1}, std::move(o));
      }));
      return ends;
    };
    std::vector<std::future<Status>> ends;
    if (rank == 1) {
      ends = both();
      EXPECT_TRUE(store.set("posted", std::to_string(getpid())).ok());
    }
    const auto posted = store.multi_get({"posted"}, 30 * kSecond);
    if (!posted.ok()) return false;
    const pid_t stopped = std::stoi((*posted)[0]);
    if (rank == 0 && (kill(stopped, SIGSTOP) != 0 || !store.set("stopped", "").ok())) return false;
    if (!store.multi_get({"stopped"}, 30 * kSecond).ok()) return false;
    if (rank != 1) ends = both();
    for (auto& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    if (rank != 1) {
      EXPECT_TRUE(store.set("done." + std::to_string(rank), "").ok());
    }
    if (rank == 0) {
      EXPECT_TRUE(store.multi_get({"done.0", "done.2", "done.3"}, 40 * kSecond).ok());
      kill(stopped, SIGCONT);
      if (more.count("faults") != 0) {
        EXPECT_GT(counter(*group, "repair_chunks_received"), 0u);
      }
    }
    for (Member r = 0; r < kRanks; r++) EXPECT_TRUE(holds(data, r * kBlock, kBlock, 7 + r));
    for (size_t i = 0; i < sums.size(); i++) {
      if (sums[i] != static_cast<int32_t>(4 * i + 6)) return ADD_FAILURE() << "sum " << i, false;
    }
    return barrier(*group).ok() && group->close(5 * kSecond).ok();
  }));
}

TEST(EngineRanks, WhatAStoppedRankHasPostedEndsOnTheOthers) {
  for (const char* setting : {"slots", "map", "copy"}) {
    SCOPED_TRACE(setting);
    a_stopped_rank({{"engine_memory", setting},
                    {"shared_memory", "off"},
                    {"faults", "drop:type=data,rate=0.05,seed=3"}});
  }
}

TEST(EngineRanks, WhatAStoppedRankHasPostedEndsInMemory) {
  for (const char* setting : {"slots", "map", "copy"}) {
    SCOPED_TRACE(setting);
    a_stopped_rank({{"engine_memory", setting}});
  }
}

// Times of the engine's clock are sent as durations and converted to this process's clock.
TEST(EngineRanks, TraceShowsTheEnginesWork) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("traced", rank, 2, store, at(engine));
    if (!group || !work(*group, 700'001, 1) || !reduce_all_ways(*group, 1000, 1)) return false;
    const std::vector<TraceEvent> events = Engine::instance().trace();
    EXPECT_GE(events.size(), 7u);
    size_t with_bytes = 0;
    for (const TraceEvent& e : events) {
      EXPECT_EQ(e.group, "traced");
      EXPECT_EQ(e.rank, rank);
      EXPECT_TRUE(e.ok);
      EXPECT_LE(e.posted, e.done);
      if (e.first_byte == kNever) continue;
      with_bytes++;
      EXPECT_LE(e.posted, e.first_byte);
      EXPECT_LE(e.first_byte, e.last_byte);
      EXPECT_LE(e.last_byte, e.done);
    }
    EXPECT_GE(with_bytes, 4u);
    return all_here(store, "over", rank, 2);
  }));
}

// The engine admits one operation at a time, so it would refuse a second record of the barrier.
TEST(EngineRanks, ABarrierAfterReductionsIsOneRecordAndHasARowOfEachLaneInTheTrace) {
  service::TenantLimits limits;
  limits.operations = 1;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("traced", rank, 2, store, at(engine));
    if (!group || !barrier(*group).ok() || !reduce_all_ways(*group, 100, 1)) return false;
    std::atomic<int> ends{0};
    const Status ended = wait_for([&](PostOptions options) {
      options.done = [&, done = std::move(options.done)](const Status& status) {
        ends++;
        done(status);
      };
      return group->post_barrier(std::move(options));
    });
    EXPECT_TRUE(ended.ok()) << ended.to_string();
    if (!barrier(*group).ok()) return false;  // a second end would have come before its end
    EXPECT_EQ(ends, 1);
    // In the engine, the barrier after the reductions is one operation on each lane.
    EXPECT_EQ(counter(*group, "ops_posted"), 1u + 4 + 2 + 1);
    EXPECT_EQ(counter(*group, "ops_completed"), 1u + 4 + 2 + 1);
    std::vector<std::pair<uint8_t, uint32_t>> rows;  // lane and sequence
    for (const TraceEvent& e : Engine::instance().trace()) {
      if (e.name == "barrier") rows.emplace_back(e.lane, e.sequence);
    }
    EXPECT_THAT(rows, ElementsAre(Pair(0, 0), Pair(0, 1), Pair(1, 4), Pair(0, 2)));
    return all_here(store, "over", rank, 2) && group->close(5 * kSecond).ok();
  }));
}

TEST(EngineRanks, ThreadsOfAUserAreLimited) {
  service::HostEngineOptions options;
  options.guardian = false;
  options.goodbye = 0;
  options.threads = 9;
  EngineProcess engine(options);
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore&) {
    auto first = ClientLink::connect(engine.path(), 10 * kSecond);
    EXPECT_TRUE(first.ok()) << first.status().to_string();
    const auto second = ClientLink::connect(engine.path(), 10 * kSecond);
    EXPECT_EQ(second.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(second.status().message(), HasSubstr("limit of 9 threads of one user (--threads)"));
    return true;
  }));
}

}  // namespace
}  // namespace mcast::test
