// The swarm, a randomized test of whole worlds: runs stored plans, fixed seeds and, in a whole run
// (support/seeds.h), fresh seeds for some seconds; also tests its own parts. A plan that breaks a
// law (an invariant) is reduced, printed with the command that repeats it, and written to a file.
//
//   MCAST_SWARM_SEED=n      runs the plan of seed n and no other
//   MCAST_SWARM_PLAN=file   runs that plan
//   MCAST_SWARM_SECONDS=s   runs fresh seeds for this long (2), counted from MCAST_SWARM_BASE, else
//                           from a random number that is printed first
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/coverage.h"
#include "base/log.h"
#include "sim/swarm/generate.h"
#include "sim/swarm/laws.h"
#include "sim/swarm/shrink.h"
#include "support/place.h"
#include "support/reach.h"
#include "support/seeds.h"

#include <unistd.h>

#ifdef MCAST_HEAP_METER
#include "sim/heap_meter.h"
#endif

namespace mcast::test {
namespace {

#ifdef MCAST_HEAP_METER
sim::HeapMeter* const meter = &heap_meter();
#else
sim::HeapMeter* const meter = nullptr;  // a sanitizer has the heap
#endif

using sim::FaultKind;
using sim::Finding;

constexpr uint64_t kFixedSeeds = 200;
constexpr size_t kShrinkRuns = 2000;
constexpr std::chrono::seconds kShrinkTime(60);

uint64_t environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Memory is inaccessible after its operation, so a late access ends the process. It must still
// print its plan then.
std::array<char, 200> running;

void on_crash(int signal) {
  (void)!write(STDOUT_FILENO, running.data(), std::strlen(running.data()));
  std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

class Swarm : public testing::Test {
 protected:
  Swarm() {
    set_log_level(LogLevel::kOff);  // groups over dead paths warn
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, on_crash);
  }
  ~Swarm() override {
    set_log_level(LogLevel::kWarn);
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, SIG_DFL);
  }
};

// How often each kind of fault has happened, over all plans of this process.
std::array<uint64_t, sim::kFaultKinds> happened{};

std::vector<Finding> run_plan(const sim::Plan& plan) {
  const sim::RunEnd run = sim::carry_out(plan, meter);
  for (size_t kind = 0; kind < sim::kFaultKinds; kind++) happened[kind] += run.happened[kind];
  for (size_t c = 0; c < kCounterCount; c++) add_reach(static_cast<Counter>(c), run.reached[c]);
  return sim::break_laws(plan, run);
}

void report(const sim::Plan& plan, const std::string& name, const std::vector<Finding>& findings) {
  const auto end = std::chrono::steady_clock::now() + kShrinkTime;
  const sim::Shrunk small = sim::shrink(
      plan, sim::kind_of(findings[0]), kShrinkRuns,
      [&] { return std::chrono::steady_clock::now() > end; }, meter);
  const std::string file = std::filesystem::absolute("swarm-" + name + ".plan").string();
  std::ofstream(file) << "# " << findings[0].law << ": " << findings[0].text << "\n"
                      << sim::print(small.plan);
  std::string all;
  for (const Finding& finding : findings) all += finding.law + ": " + finding.text + "\n";
  ADD_FAILURE() << name << ":\n"
                << all << "smallest plan, after " << small.runs << " runs:\n"
                << sim::print(small.plan) << "MCAST_SWARM_PLAN=" << file
                << " mcast_test_sim --gtest_filter=Swarm.GivenPlanBreaksNoLaw";
}

// Returns false if a law is broken.
bool try_seed(uint64_t seed) {
  std::snprintf(running.data(), running.size(), "MCAST_SWARM_SEED=%llu ended the process\n",
                static_cast<unsigned long long>(seed));
  const sim::Plan plan = sim::generate(seed);
  const std::vector<Finding> findings = run_plan(plan);
  if (findings.empty()) return true;
  report(plan, std::to_string(seed), findings);
  return false;
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool one_plan_only() {
  return std::getenv("MCAST_SWARM_SEED") != nullptr || std::getenv("MCAST_SWARM_PLAN") != nullptr;
}

TEST_F(Swarm, StoredPlansBreakNoLaw) {
  const auto folder = std::filesystem::path(kSourceDir) / "tests/cpp/sim/plans";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".plan") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty());
  for (const auto& file : files) {
    const Result<sim::Plan> plan = sim::parse(text_of(file));
    ASSERT_TRUE(plan.ok()) << file << ": " << plan.status().message();
    std::snprintf(running.data(), running.size(), "%s ended the process\n",
                  file.filename().c_str());
    for (const Finding& finding : run_plan(*plan)) {
      ADD_FAILURE() << file.filename() << ": " << finding.law << ": " << finding.text;
    }
  }
}

TEST_F(Swarm, GivenPlanBreaksNoLaw) {
  const char* const file = std::getenv("MCAST_SWARM_PLAN");
  if (file == nullptr) return;  // runs only on request
  const Result<sim::Plan> plan = sim::parse(text_of(file));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  for (const Finding& finding : run_plan(*plan)) {
    ADD_FAILURE() << finding.law << ": " << finding.text;
  }
}

TEST_F(Swarm, FixedSeedsBreakNoLaw) {
  if (one_plan_only()) return;
  const uint64_t count = seed_count(kFixedSeeds, 10);
  for (uint64_t seed = 1, broken = 0; seed <= count && broken < 3; seed++) {
    broken += try_seed(seed) ? 0 : 1;
  }
  for (size_t kind = 0; count >= kFixedSeeds && kind < sim::kFaultKinds; kind++) {
    EXPECT_GT(happened[kind], 0u) << sim::fault_name(static_cast<FaultKind>(kind));
  }
}

// Each fault other than a process's end has its effect, and is counted.
TEST_F(Swarm, EachFaultHappensAndIsCounted) {
  const std::string world =
      "world hosts=3\ngroup ranks=0,1,2\nop kind=broadcast bytes=200000\nop kind=barrier at=2ms\n"
      "op kind=all_gather bytes=3000\nop kind=all_reduce bytes=64000\nfault what=drop rate=0.1\n";
  for (const auto& [kind, fault] : {
           std::pair(FaultKind::kCut, "cut rank=1 for=500ms"),
           std::pair(FaultKind::kCut, "cut rank=1 peer=0 lane=1 for=500ms every=1ms"),
           std::pair(FaultKind::kDelay, "delay rank=none much=5ms for=50ms"),
           std::pair(FaultKind::kRefuse, "refuse rate=0.5 for=50ms"),
           std::pair(FaultKind::kForget, "forget rate=0.9 for=500ms"),
           std::pair(FaultKind::kDrop, "drop rate=0.3 burst=4"),
           std::pair(FaultKind::kLoss, "loss rate=0.01"),
           std::pair(FaultKind::kMute, "mute rank=0 peer=1 for=20ms"),
           std::pair(FaultKind::kDuplicate, "duplicate rate=0.3 much=1ms"),
           std::pair(FaultKind::kReorder, "reorder rate=0.3 much=1ms"),
           std::pair(FaultKind::kCorrupt, "corrupt rate=0.2"),
           std::pair(FaultKind::kReplay, "replay rate=0.1 much=1ms"),
           std::pair(FaultKind::kFlood, "flood rank=none burst=5 every=1ms for=50ms"),
           std::pair(FaultKind::kFlood, "flood rank=2 lane=1 every=1ms for=50ms"),
           std::pair(FaultKind::kExit, "exit rank=1"),
           std::pair(FaultKind::kAbsent, "absent rank=2"),
       }) {
    SCOPED_TRACE(fault);
    const Result<sim::Plan> plan = sim::parse(world + "fault what=" + fault);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const sim::RunEnd run = sim::carry_out(*plan);
    EXPECT_GT(run.count(kind), 0u);
    for (const Finding& finding : sim::break_laws(*plan, run)) {
      ADD_FAILURE() << finding.law << ": " << finding.text;
    }
  }
}

// Ranks of a host share memory, and large operations go by rails or subgroups, with faults.
TEST_F(Swarm, GroupsWithParts) {
  for (const char* const text : {
           "world hosts=2 ranks=2\nset shared_memory=auto\ngroup ranks=0,1,2,3\n",
           "world hosts=2 ranks=2\nset shared_memory=slots\ngroup ranks=3,0,1,2\n",
           "world hosts=1 ranks=4\nset shared_memory=auto\ngroup ranks=0,1,2,3\n",
           "world hosts=4\nset subgroups=2\ngroup ranks=0,1,2,3\n",
           "world hosts=3 ranks=2\nset shared_memory=auto subgroups=2\ngroup ranks=0,1,2,4\n",
       }) {
    SCOPED_TRACE(text);
    const Result<sim::Plan> plan = sim::parse(
        text + std::string("op kind=broadcast bytes=4500000 root=2\nop kind=barrier\n"
                           "op kind=all_gather bytes=1200000 late=1 by=2ms\n"
                           "op kind=all_reduce bytes=30000 element=float32 reduction=premul_sum\n"
                           "fault what=drop rate=0.01\nfault at=1ms for=5ms rank=3\n"));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const sim::RunEnd run = sim::carry_out(*plan);
    for (const Finding& finding : sim::break_laws(*plan, run)) {
      ADD_FAILURE() << finding.law << ": " << finding.text;
    }
    for (const sim::CallEnd& call : run.calls) EXPECT_TRUE(call.ends == 1 && call.status.ok());
    EXPECT_EQ(run.groups[0].parts, plan->world.hosts > 1);
  }
}

// Exchanges of all kinds, with a late rank, beside multicast, and with several ranks on a host.
TEST_F(Swarm, GroupsThatExchange) {
  const std::string ops =
      "op kind=all_to_all bytes=200000\nop kind=all_to_all bytes=70000 splits=4 late=1 by=3ms\n"
      "op kind=broadcast bytes=300000\nop kind=gather bytes=90000 root=2\n"
      "op kind=scatter bytes=40000 root=1\nop kind=all_to_all bytes=50000 splits=6\n"
      "op kind=all_reduce bytes=100000\nop kind=all_to_all\nop kind=gather\nop kind=barrier\n";
  for (const char* const world : {"world hosts=4\nset incast=65536\ngroup ranks=3,1,0,2\n",
                                  "world hosts=2 ranks=2\n"
                                  "set shared_memory=auto\ngroup ranks=0,1,2,3\n",
                                  "world hosts=1 ranks=4\n"
                                  "set shared_memory=auto\ngroup ranks=0,1,2,3\n",
                                  "world hosts=4\nset subgroups=2\n"
                                  "group ranks=0,1,2,3\n"}) {
    for (const char* const fault : {"", "fault what=loss rate=0.01", "fault rank=3 at=1ms for=50ms",
                                    "fault what=cut rank=0 lane=1 at=1ms for=300ms"}) {
      SCOPED_TRACE(std::string(world) + fault);
      const Result<sim::Plan> plan = sim::parse(world + ops + fault);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const sim::RunEnd run = sim::carry_out(*plan, meter);
      for (const Finding& finding : sim::break_laws(*plan, run)) {
        ADD_FAILURE() << finding.law << ": " << finding.text;
      }
      for (const sim::CallEnd& call : run.calls) EXPECT_TRUE(call.ends == 1 && call.status.ok());
    }
  }
}

// Messages of all lengths, kept and waited for, from a given and from any source, beside
// operations.
TEST_F(Swarm, GroupsThatSendMessages) {
  const std::string what =
      "op kind=broadcast bytes=300000\nop kind=all_to_all bytes=70000\nop kind=all_reduce "
      "bytes=40000\n"
      "message bytes=2000000 by=5ms\nmessage bytes=32768 tag=2\nmessage bytes=32769 at=1ms by=6ms\n"
      "message from=2 to=1 bytes=900000 tag=5 any=1 by=3ms\nmessage from=2 to=1\n"
      "message from=3 to=0 bytes=1000000 tag=1\nmessage from=1 to=0 bytes=1000000 tag=1\n"
      "message from=0 to=3 bytes=500 tag=9 at=20ms\n";
  for (const char* const world : {"world hosts=4\nset incast=65536\ngroup ranks=3,1,0,2\n",
                                  "world hosts=4\ngroup ranks=0,1,2,3 early=1\n",
                                  "world hosts=4\nset security=sealed\ngroup ranks=0,1,2,3\n",
                                  "world hosts=2 ranks=2\n"
                                  "set shared_memory=auto\ngroup ranks=0,1,2,3\n"}) {
    for (const char* const fault :
         {"", "fault what=loss rate=0.01", "fault rank=3 at=1ms for=50ms",
          "fault what=cut rank=0 lane=1 at=1ms for=300ms", "fault what=kill rank=1 at=2ms",
          "fault what=abort rank=2 at=1ms", "fault what=isolate rank=0 at=2ms"}) {
      SCOPED_TRACE(std::string(world) + fault);
      const Result<sim::Plan> plan = sim::parse(world + what + fault);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const sim::RunEnd run = sim::carry_out(*plan, meter);
      for (const Finding& finding : sim::break_laws(*plan, run)) {
        ADD_FAILURE() << finding.law << ": " << finding.text;
      }
      const std::string kind = fault;
      const bool heals = kind.find("kill") + kind.find("abort") + kind.find("isolate") + 3 == 0;
      for (const sim::MessageEnd& end : run.messages) {
        EXPECT_TRUE(!heals || (end.ends == 1 && end.status.ok())) << end.status.to_string();
      }
      const uint64_t kept = run.reached[static_cast<size_t>(Counter::messages_kept)];
      EXPECT_TRUE(!heals || kept > 0);
    }
  }
  // Messages between ranks of one host in shared memory are not carried.
  const auto plan = sim::parse(
      "world hosts=1 ranks=2\nset shared_memory=auto\ngroup ranks=0,1\nop\nmessage bytes=9\n");
  const sim::RunEnd run = sim::carry_out(*plan, meter);
  EXPECT_TRUE(sim::break_laws(*plan, run).empty());
  ASSERT_EQ(run.messages.size(), 2u);
  for (const sim::MessageEnd& end : run.messages) EXPECT_FALSE(end.carried || end.called);
}

// Faults of aggregators cost only time: stations fold, die, end, stop, are cut off and decline, and
// every call succeeds.
TEST_F(Swarm, GroupsWithAggregators) {
  const std::string world =
      "world hosts=5\nset incast=65536 aggregator_patience=300\naggregator\naggregator lanes=2\n";
  const std::string work =
      "group ranks=0,1,2,3,4\nop kind=all_reduce bytes=1200000 element=float32\n"
      "op kind=reduce_scatter bytes=300000 element=bfloat16\nop kind=broadcast bytes=70000\n"
      "op kind=all_reduce bytes=800000 at=1s late=2 by=1100ms\n"
      "op kind=all_reduce bytes=800000 element=float64 at=4s\n";
  for (const auto& [kind, fault] : {
           std::pair(FaultKind::kDrop, "fault what=drop rate=0.01"),
           std::pair(FaultKind::kAggKill, "fault what=agg_kill at=2ms for=500ms"),
           std::pair(FaultKind::kAggKill, "fault what=agg_kill aggregator=1"),
           std::pair(FaultKind::kAggEnd, "fault what=agg_end at=2ms for=2s much=1s aggregator=1"),
           std::pair(FaultKind::kAggPause, "fault what=agg_pause at=2ms for=2s"),
           std::pair(FaultKind::kAggPause, "fault what=agg_pause at=1s aggregator=1"),
           std::pair(FaultKind::kAggCut, "fault what=agg_cut at=2ms for=1s aggregator=1"),
           std::pair(FaultKind::kAggRepeat, "fault what=agg_repeat rate=0.9"),
       }) {
    SCOPED_TRACE(fault);
    const Result<sim::Plan> plan = sim::parse(world + work + fault);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const sim::RunEnd run = sim::carry_out(*plan, meter);
    EXPECT_GT(run.count(kind), 0u);
    EXPECT_GT(run.groups[0].total(Counter::agg_results), 0u);
    for (const Finding& finding : sim::break_laws(*plan, run)) {
      ADD_FAILURE() << finding.law << ": " << finding.text;
    }
    for (const sim::CallEnd& call : run.calls) EXPECT_TRUE(call.ends == 1 && call.status.ok());
    const auto repeated = run.aggregators[0].counters[static_cast<size_t>(Counter::agg_repeated)];
    EXPECT_EQ(repeated > 0, kind == FaultKind::kAggRepeat);
  }
  const Result<sim::Plan> declined = sim::parse(
      "world hosts=3\nset incast=65536\naggregator quota=65536\ngroup ranks=0,1,2\n"
      "op kind=all_reduce bytes=600000\n");
  ASSERT_TRUE(declined.ok());
  const sim::RunEnd run = sim::carry_out(*declined, meter);
  EXPECT_TRUE(sim::break_laws(*declined, run).empty());
  EXPECT_EQ(run.groups[0].total(Counter::agg_results), 0u);
}

// Multicast fails while calls continue, and recovers: all ranks move to the ring, delay the calls
// made meanwhile, and return some seconds later.
TEST_F(Swarm, GroupsThatChangeTheirPath) {
  const auto file =
      std::filesystem::path(kSourceDir) / "tests/cpp/sim/plans/posts_wait_for_a_cutover.plan";
  const Result<sim::Plan> plan = sim::parse(text_of(file));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto waits = static_cast<size_t>(ReachPoint::post_waits_for_a_line);
  const uint64_t before = reach_points::count(waits);
  const sim::RunEnd run = sim::carry_out(*plan, meter);
  for (const Finding& finding : sim::break_laws(*plan, run)) {
    ADD_FAILURE() << finding.law << ": " << finding.text;
  }
  for (const sim::CallEnd& call : run.calls) EXPECT_TRUE(call.ends == 1 && call.status.ok());
  EXPECT_TRUE(run.groups[0].multicast);
  EXPECT_EQ(run.groups[0].total(Counter::path_switches), 2u * plan->ranks());
  EXPECT_GT(reach_points::count(waits), before);
}

TEST_F(Swarm, TheHeapIsBookedByRankAndGivenBack) {
  const sim::Plan plan = sim::parse(
                             "world hosts=3\ngroup ranks=0,1,2\nop kind=all_gather bytes=200000\n"
                             "op kind=all_reduce bytes=100000 late=1 by=50ms\n")
                             .value();
  EXPECT_TRUE(sim::carry_out(plan).heap.empty());
  if (meter == nullptr) return;
  const sim::RunEnd run = sim::carry_out(plan, meter);
  ASSERT_EQ(run.heap.size(), 3u);
  for (const sim::HeapEnd& heap : run.heap) {
    EXPECT_GT(heap.most, 20'000u);
    EXPECT_LT(heap.left, 16'384u);
  }
}

TEST_F(Swarm, FreshSeedsBreakNoLaw) {
  if (std::getenv("MCAST_SWARM_PLAN") != nullptr) return;
  if (std::getenv("MCAST_SWARM_SEED") != nullptr) {
    std::printf("%s", sim::print(sim::generate(environment("MCAST_SWARM_SEED", 1))).c_str());
    EXPECT_TRUE(try_seed(environment("MCAST_SWARM_SEED", 1)));
    return;
  }
  const bool asked = std::getenv("MCAST_SWARM_BASE") || std::getenv("MCAST_SWARM_SECONDS");
  if (!asked && !whole_run()) return;  // `make test` runs no fresh seeds
  const uint64_t base = environment("MCAST_SWARM_BASE", 1'000'000'000ull + std::random_device()());
  std::printf("fresh plans: MCAST_SWARM_BASE=%llu\n", static_cast<unsigned long long>(base));
  std::fflush(stdout);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(environment("MCAST_SWARM_SECONDS", 2));
  uint64_t plans = 0, broken = 0;
  for (; std::chrono::steady_clock::now() < end && broken < 3; plans++) {
    broken += try_seed(base + plans) ? 0 : 1;
  }
  std::printf("%llu fresh plans\n", static_cast<unsigned long long>(plans));
}

// ---- parts of the randomized test ----

TEST_F(Swarm, TheSamePlanIsTheSameRun) {
  if (one_plan_only()) return;
  for (const uint64_t seed : seeds(50)) {
    const sim::Plan plan = sim::generate(seed);
    EXPECT_EQ(sim::carry_out(plan).hash, sim::carry_out(plan).hash) << "seed " << seed;
  }
}

TEST(SwarmPlan, IsReadAsItWasPrinted) {
  for (uint64_t seed = 1; seed <= 2000; seed++) {
    const std::string text = sim::print(sim::generate(seed));
    const Result<sim::Plan> plan = sim::parse(text);
    ASSERT_TRUE(plan.ok()) << seed << ": " << plan.status().message();
    EXPECT_EQ(sim::print(*plan), text);
  }
}

TEST(SwarmPlan, BadTextGivesOneClearLine) {
  const auto why = [](const std::string& text) {
    const Result<sim::Plan> plan = sim::parse(text);
    return plan.ok() ? std::string("taken") : plan.status().message();
  };
  using testing::HasSubstr;
  const std::string good = "world hosts=3\ngroup ranks=0,1,2\n";
  EXPECT_EQ(why(good + "# a word\n\nop kind=barrier at=3ms\n"), "taken");
  EXPECT_THAT(why("word hosts=3"), HasSubstr("line 1: 'word' is not an item"));
  EXPECT_THAT(why("world hosts=3\nworld hots=3"), HasSubstr("line 2: there is no field 'hots'"));
  EXPECT_THAT(why("world hosts=many"), HasSubstr("'many' is not a value of hosts"));
  EXPECT_THAT(why("world hosts"), HasSubstr("'hosts' is not name=value"));
  EXPECT_THAT(why(good + "op at=3 minutes"), HasSubstr("'3' is not a value of at"));
  EXPECT_THAT(why(good + "op group=1"), HasSubstr("no such group"));
  EXPECT_THAT(why(good + "op kind=broadcast root=3"), HasSubstr("root is not a member"));
  EXPECT_THAT(why(good + "op kind=all_reduce bytes=3"), HasSubstr("not a multiple of the element"));
  EXPECT_EQ(why(good + "op kind=all_to_all bytes=7 splits=3\nop kind=gather root=2"), "taken");
  EXPECT_THAT(why(good + "op kind=scatter splits=3"), HasSubstr("only an all_to_all has splits"));
  EXPECT_EQ(why(good + "message from=2 to=0 bytes=7 tag=3 any=1 at=1ms"), "taken");
  EXPECT_THAT(why(good + "message from=1 to=1"), HasSubstr("two members"));
  EXPECT_THAT(why(good + "message group=1"), HasSubstr("no such group"));
  EXPECT_THAT(why(good + "message any=1\nmessage from=2"), HasSubstr("needs a tag of its own"));
  EXPECT_THAT(why(good + "message at=2ms\nmessage at=1ms"), HasSubstr("in order"));
  EXPECT_THAT(why(good + "fault what=cut rank=1 peer=0 for=20000000s"), HasSubstr("million"));
  EXPECT_THAT(why(good + "fault what=kill rank=3"), HasSubstr("no such rank"));
  EXPECT_THAT(why(good + "fault what=cut rank=1 peer=1"), HasSubstr("are the same"));
  EXPECT_THAT(why(good + "aggregator\nfault what=agg_kill aggregator=1"),
              HasSubstr("no such aggregator"));
  EXPECT_THAT(why(good + "aggregator lanes=9"), HasSubstr("lanes is not 1 to 8"));
  EXPECT_THAT(why(good + "fault what=cut lane=2"), HasSubstr("lane is 0, 1 or none"));
  EXPECT_THAT(why(good + "fault what=forget rate=0.5"), HasSubstr("has to end"));
  EXPECT_THAT(why(good + "set chunks=3"), HasSubstr("chunks"));
  EXPECT_THAT(why(good + "set partial=3"), HasSubstr("partial"));
  EXPECT_THAT(why("world topology=torus"), HasSubstr("torus"));
  EXPECT_THAT(why("group ranks=0"), HasSubstr("at least two ranks"));
}

// The plan of a failure is reduced to the lines that it needs.
TEST(SwarmShrink, LeavesOnlyNeededLines) {
  const auto fails = [](const sim::Plan& plan) {
    const bool kills = std::any_of(plan.faults.begin(), plan.faults.end(),
                                   [](const auto& f) { return f.what == FaultKind::kKill; });
    const bool gathers = std::any_of(plan.ops.begin(), plan.ops.end(), [](const auto& op) {
      return op.kind == wire::Kind::kAllgather && op.bytes >= 1000;
    });
    return kills && gathers;
  };
  int tried = 0;
  for (uint64_t seed = 1; tried < 5 && seed < 5000; seed++) {
    const sim::Plan plan = sim::generate(seed);
    if (!fails(plan)) continue;
    tried++;
    const sim::Shrunk small = sim::shrink(plan, fails, 5000);
    EXPECT_TRUE(fails(small.plan));
    EXPECT_EQ(small.plan.ranks(), 2u) << sim::print(small.plan);
    EXPECT_EQ(small.plan.groups.size(), 1u);
    ASSERT_EQ(small.plan.ops.size(), 1u);
    EXPECT_LT(small.plan.ops[0].bytes, 2100u);
    EXPECT_EQ(small.plan.faults.size(), 1u);
    EXPECT_TRUE(small.plan.settings.empty());
    EXPECT_TRUE(small.plan.special.empty());
  }
  EXPECT_EQ(tried, 5);
}

}  // namespace
}  // namespace mcast::test
