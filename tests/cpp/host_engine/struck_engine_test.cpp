// A host engine, or a rank that uses it, is killed or stopped at a random moment: while a group is
// made, in operations and messages, while it is closed. All other ranks name the killed process, a
// stopped one only delays them, and memory that was given back is not written any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine_process.h"
#include "support/ranks/arena_new.h"
#include "support/ranks/message_ranks.h"
#include "support/ranks/programs.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr Member kRanks = 3, kStriker = kRanks;
constexpr int kRounds = 12;  // if no process is killed

constexpr uint32_t kSteps = 11;  // of a group: creation, nine operations, close

struct Blow {
  bool engine, kill;
  Member rank;
  uint32_t step;  // strikes before this step of `rank`
};

Blow blow_of(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const bool kill = rng() % 3 != 0, engine = rng() % 2 == 0;
  return {engine, kill, static_cast<Member>(rng() % kRanks),
          static_cast<uint32_t>(rng() % (3 * kSteps))};
}

// Memory that a rank has posted and got back.
struct Memory {
  std::vector<std::byte> gathered = std::vector<std::byte>(kRanks * 300'000);
  std::vector<std::byte> word = std::vector<std::byte>(50'000);
  std::vector<std::shared_ptr<EngineMessage>> messages;
  std::function<void()> before_step;
};

// Sends to the next rank and receives from the one before.
Status pass_on(Group& group, Member rank, uint32_t round, Memory& memory) {
  const Member next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
  const auto out = post_one(group, false, next, round, 100'000, round + rank);
  const auto in = post_one(group, true, before, round, 100'000, 0);
  memory.messages = {out, in};
  const Status sent = out->end.get(), received = in->end.get();
  if (!sent.ok() || !received.ok()) return sent.ok() ? received : sent;
  EXPECT_TRUE(holds(in->bytes, 0, 100'000, round + before));
  return {};
}

// Makes a group, uses it, and closes it.
Status live(const GroupSpec& spec, uint32_t round, DirectoryStore store, Memory& memory) {
  memory.before_step();
  auto made = Engine::instance().create_group(spec, store);
  if (!made.ok()) return made.status();
  Group& group = **made;
  constexpr size_t kBlock = 300'000;
  for (uint32_t i = 0; i < 3; i++) {
    fill(memory.gathered, spec.rank * kBlock, kBlock, i + spec.rank);
    memory.before_step();
    if (const Status s = allgather(group, memory.gathered); !s.ok()) return s;
    for (Member r = 0; r < kRanks; r++) {
      EXPECT_TRUE(holds(memory.gathered, r * kBlock, kBlock, i + r)) << "of rank " << r;
    }
    if (spec.rank == i) fill(memory.word, 0, memory.word.size(), round);
    memory.before_step();
    if (const Status s = broadcast(group, memory.word, static_cast<Member>(i)); !s.ok()) return s;
    EXPECT_TRUE(holds(memory.word, 0, memory.word.size(), round));
    memory.before_step();
    if (const Status s = pass_on(group, spec.rank, i, memory); !s.ok()) return s;
  }
  memory.before_step();
  return group.close(20 * kSecond);
}

bool stays(std::vector<std::byte>& bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0x77});
  usleep(20'000);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0x77}; });
}

// One rank: makes groups one after the other until the rounds are over or the blow ends it.
bool rank_of(const EngineProcess& engine, const std::string& setting, Member rank, const Blow& blow,
             DirectoryStore& store) {
  if (setting == "map") new_in_arenas();
  const char* const limit = blow.kill ? "3000" : "60000";  // ms; all survive a stop
  auto spec = group_spec("struck", rank, kRanks,
                         {{"engine", engine.setting()},
                          {"engine_memory", setting},
                          {"shared_memory", kSharedMemory},
                          {"liveness_limit", limit},
                          {"probe_timeout", limit}});
  if (!spec || !store.set("begins." + std::to_string(rank), std::to_string(getpid())).ok()) {
    return false;
  }
  spec->timeout = (blow.kill ? 5 : 60) * kSecond;
  Memory memory;
  memory.before_step = [&, step = 0u]() mutable {
    if (rank != blow.rank || step++ != blow.step) return;
    EXPECT_TRUE(store.set("strike", "").ok());
  };
  Status status;
  for (uint32_t round = 0; status.ok() && (blow.kill || round < kRounds); round++) {
    status = live(*spec, round, store.scoped(std::to_string(round)), memory);
  }
  EXPECT_TRUE(stays(memory.gathered) && stays(memory.word)) << "written after it went back";
  for (const auto& message : memory.messages) {
    EXPECT_TRUE(stays(message->bytes)) << "written after it went back";
  }
  if (!blow.kill) {
    EXPECT_TRUE(status.ok()) << status.to_string();
    return status.ok();
  }
  // The last pattern: it was killed before it reached a round of the rendezvous; the store's error
  // says so.
  EXPECT_THAT(status.message(), AnyOf(HasSubstr("engine of this host"), HasSubstr("rank "),
                                      ContainsRegex("no key [a-z]+/[0-9]")));
  if (blow.engine) {
    EXPECT_THAT(status.message(), HasSubstr("ngine of this host"));
  }
  return !status.ok();
}

bool strike(const EngineProcess& engine, const Blow& blow, DirectoryStore& store) {
  std::vector<std::string> keys;
  for (Member r = 0; r < kRanks; r++) keys.push_back("begins." + std::to_string(r));
  const auto pids = store.multi_get(keys, 30 * kSecond);
  if (!pids.ok()) return false;
  const pid_t target = blow.engine ? engine.pid() : std::stoi((*pids)[blow.rank]);
  if (!store.multi_get({"strike"}, 60 * kSecond).ok()) return false;
  kill(target, blow.kill ? SIGKILL : SIGSTOP);
  if (blow.kill) return true;
  usleep(500'000);
  return kill(target, SIGCONT) == 0;
}

void struck(uint64_t seed, const std::string& setting) {
  const Blow blow = blow_of(seed);
  SCOPED_TRACE(testing::Message() << setting << ", seed " << seed << ": "
                                  << (blow.engine ? "engine" : "rank") << " "
                                  << (blow.kill ? "killed" : "stopped") << " at step " << blow.step
                                  << " of rank " << blow.rank);
  EngineProcess engine;
  const auto ends = run_ranks(kRanks + 1, 180, [&](Member rank, DirectoryStore& store) {
    return rank == kStriker ? strike(engine, blow, store)
                            : rank_of(engine, setting, rank, blow, store);
  });
  for (Member r = 0; r <= kStriker; r++) {
    const bool dies = blow.kill && !blow.engine && r == blow.rank;
    EXPECT_EQ(ends[r].signal, dies ? SIGKILL : 0) << "rank " << r;
    if (!dies) {
      EXPECT_EQ(ends[r].exit_code, 0) << "rank " << r;
    }
  }
  if (blow.kill && blow.engine) {
    EXPECT_EQ(engine.end(SIGTERM), -SIGKILL);
  }
}

class StruckEngine : public testing::TestWithParam<const char*> {};

TEST_P(StruckEngine, WhoIsStruckAtAnyPointIsNamed) {
  for (const uint64_t seed : seeds(8)) {
    struck(seed, GetParam());
    if (HasFailure()) return;  // every later fork would inherit the failure
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, StruckEngine, testing::Values("slots", "map", "copy"));

}  // namespace
}  // namespace mcast::test
