// A host engine's refusals: clients beyond its limits get an error that names the limit, and
// hostile clients are ended. The jobs beside them are not affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "engine_process.h"
#include "host_engine/client/client_link.h"
#include "host_engine/ipc/record.h"
#include "hostile_client.h"
#include "shm/arena_pool.h"
#include "support/ranks/arena_new.h"
#include "support/ranks/programs.h"
#include "support/seeds.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

GroupSpec spec_of(const EngineProcess& engine, Member rank, uint32_t ranks) {
  auto spec = group_spec("limited", rank, ranks, {{"engine", engine.setting()}});
  spec->timeout = 20 * kSecond;
  return *spec;
}

TEST(EngineLimits, GroupsBeyondTheLimitAreRefusedUntilOneIsFreed) {
  service::TenantLimits limits;
  limits.groups = 1;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto first = store.scoped("a"), second = store.scoped("b"), third = store.scoped("c");
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), first);
    if (!made.ok()) return false;
    const auto refused = Engine::instance().create_group(spec_of(engine, rank, 2), second);
    EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("engine's limit of 1 groups"));
    EXPECT_TRUE(work(**made, 1000, 2));
    EXPECT_TRUE((*made)->close(5 * kSecond).ok());
    made = Status(Code::kClosed, "");  // frees its place
    auto again = Engine::instance().create_group(spec_of(engine, rank, 2), third);
    return again.ok() && work(**again, 1000, 2);
  }));
}

TEST(EngineLimits, OperationBeyondTheMemoryLimitIsRefused) {
  service::TenantLimits limits;
  limits.arenas = uint64_t{40} << 20;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    if (!made.ok()) return false;
    EXPECT_TRUE(work(**made, 1 << 20, 20));  // spans are reused: 40 MiB serve more than 40 MiB
    std::vector<std::byte> large(size_t{64} << 20);
    const Status status = broadcast(**made, large, 0);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("bytes of arenas (--arenas)"));
    return true;
  }));
}

// There is room for the pool and one arena of spans, into which these operations would not fit.
TEST(EngineLimits, TensorsThatAreMappedTakeNoSpans) {
  service::TenantLimits limits;
  limits.arenas = ArenaPool::memory_of_machine() + (uint64_t{40} << 20);
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    new_in_arenas();
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    return made.ok() && work(**made, size_t{64} << 20, 1) && reduce_all_ways(**made, 10 << 20, 1);
  }));
}

TEST(EngineLimits, OperationsInFlightBeyondTheLimitFailOnAllRanks) {
  service::TenantLimits limits;
  limits.operations = 3;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return false;
    Group& group = **made;
    // Otherwise its creation may end with the other rank's abort.
    if (!store.set("made." + std::to_string(rank), "").ok()) return false;
    if (!store.multi_get({"made.0", "made.1"}, 30 * kSecond).ok()) return false;
    if (rank == 1) {
      std::vector<std::byte> data(100);
      const Status status = broadcast(group, data, 0, 20 * kSecond);
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("operations in flight (--operations)"));
      return store.set("told", "").ok();
    }
    // Barriers that rank 1 does not call.
    std::atomic<int> ended{0};
    std::atomic<bool> named{false};
    for (int i = 0; i < 4; i++) {
      PostOptions options;
      options.done = [&](const Status& status) {
        if (status.message().find("3 operations in flight (--operations)") != std::string::npos) {
          named = true;
        }
        ended++;
      };
      EXPECT_TRUE(group.post_barrier(std::move(options)).ok());
    }
    (void)group.help(
        LaneId::kMulticast, [&] { return ended == 4; }, monotonic_now() + 20 * kSecond);
    EXPECT_EQ(ended, 4);
    EXPECT_TRUE(named);
    return store.multi_get({"told"}, 30 * kSecond).ok();  // otherwise rank 1 may see this one's end
  }));
}

TEST(EngineLimits, ClientsBeyondTheLimitOfAUserAreRefused) {
  EngineProcess engine({}, 1);
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore&) {
    auto first = ClientLink::connect(engine.path(), 10 * kSecond);
    EXPECT_TRUE(first.ok()) << first.status().to_string();
    const auto second = ClientLink::connect(engine.path(), 10 * kSecond);
    EXPECT_EQ(second.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(second.status().message(), HasSubstr("limit of 1 clients of one user"));
    return true;
  }));
}

TEST(EngineLimits, WithoutAnEngineTheErrorNamesThePath) {
  const auto link = ClientLink::connect("/nonexistent/engine.sock", 100 * kMilli);
  EXPECT_EQ(link.status().code(), Code::kUnavailable);
  EXPECT_THAT(link.status().message(), HasSubstr("cannot connect to /nonexistent/engine.sock"));
}

// Posts to an unknown group are answered, so there are always more answers.
TEST(EngineLimits, ClientThatReadsNoCompletionsIsEnded) {
  service::TenantLimits limits;
  limits.operations = 16;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore&) {
    Hostile client(engine.path(), 1);
    if (!client.greet()) return false;
    int posts = 0;
    while (!client.ended() && posts < 200'000) {
      client.post();
      posts++;
    }
    EXPECT_LT(posts, 20'000) << "both rings, and what the engine keeps";
    return client.ended();
  }));
}

// A client that is otherwise correct, so its post reaches the group.
TEST(EngineLimits, ASliceBesideItsArenaEndsTheClient) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    const GroupSpec spec = spec_of(engine, rank, 2);
    if (rank == 1) {
      auto made = Engine::instance().create_group(spec, store);
      if (!made.ok() || !store.set("both are there", "").ok()) return false;
      std::vector<std::byte> data(4096);
      const Status status = broadcast(**made, data, 0);
      EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("a slice is outside its arena"));
      return true;
    }
    auto link = ClientLink::connect(engine.path(), 5 * kSecond);
    if (!link.ok()) return false;
    const auto made = (*link)->make_group(spec, store);
    const auto span = (*link)->arenas().take(4096);
    if (!made.ok() || !*made || !span.ok()) return false;
    if (!store.multi_get({"both are there"}, 20 * kSecond).ok()) return false;
    ipc::PostRecord post;
    post.group = (*made)->handle;
    post.timeout = 20 * kSecond;
    post.descriptor = {wire::Kind::kBroadcast, 0, 0, 4096, "broadcast"};
    ipc::add_slice(post.runs, static_cast<ipc::Space>((*span)->space), ipc::Role::kInput,
                   ClientArenas::kLeast - 4095, 4096);
    EXPECT_TRUE((*link)->submit(post).ok());
    return until([&] { return !(*link)->lost().ok(); }, "the engine to end the link");
  }));
}

// One client after the other attacks. Returns whether the attacks have reached the engine.
bool attack(const std::string& path, const Seeds& all) {
  Hostile::Taken sum;
  for (const uint64_t seed : all) {
    Hostile client(path, seed);
    client.attack(static_cast<Hostile::Manner>(seed % 3));
    const Hostile::Taken taken = client.taken();
    sum.records += taken.records;
    sum.mutated += taken.mutated;
  }
  std::printf("%lu hostile records were read, %lu of them mutated\n", sum.records, sum.mutated);
  return replaying() || (sum.records > 10 * all.size() && sum.mutated > all.size() / 3);
}

// Two jobs of two ranks each work and compare bytes while a fifth process attacks their engine.
TEST(EngineLimits, AHostileClientHarmsNobody) {
  service::TenantLimits limits;
  limits.arenas = uint64_t{64} << 20;
  EngineProcess engine(limits);
  const Seeds all = seeds(60);
  const auto limit = static_cast<unsigned>(120 + all.size() / 10);
  expect_all_good(run_ranks(5, limit, [&](Member rank, DirectoryStore& store) {
    if (rank == 4) return attack(engine.path(), all) && store.set("attacked", "").ok();
    DirectoryStore jobs = store.scoped(rank < 2 ? "a" : "b");
    auto made = Engine::instance().create_group(spec_of(engine, rank % 2, 2), jobs);
    if (!made.ok()) return false;
    int rounds = 0;
    for (bool over = false; !over; rounds++) {
      if (!work(**made, 50'000, 1)) return false;
      if (!reduce_all_ways(**made, 3000, rounds)) return false;
      // The first rank detects the end and tells the other.
      std::vector<std::byte> word(1);
      if (rank % 2 == 0) {
        const bool last = rounds >= 2 && store.multi_get({"attacked"}, 0).ok();
        word[0] = std::byte(last ? 1 : 0);
      }
      if (!broadcast(**made, word, 0).ok()) return false;
      over = word[0] == std::byte{1};
    }
    EXPECT_GE(rounds, 3);
    return (*made)->close(5 * kSecond).ok();
  }));
}

}  // namespace
}  // namespace mcast::test
