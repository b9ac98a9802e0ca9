// Kinds of trouble that random plans do not produce, with one small plan each: the trouble happens,
// the product reacts, and no invariant is broken.
#include <gtest/gtest.h>

#include "base/coverage.h"
#include "base/log.h"
#include "sim/swarm/laws.h"

namespace mcast::test {
namespace {

class SwarmKinds : public testing::Test {
 protected:
  SwarmKinds() { set_log_level(LogLevel::kOff); }  // groups over dead paths warn
  ~SwarmKinds() override { set_log_level(LogLevel::kWarn); }
};

uint64_t times_at(ReachPoint point) { return reach_points::count(static_cast<size_t>(point)); }

sim::RunEnd lawful_run(const std::string& text) {
  const Result<sim::Plan> plan = sim::parse(text);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  sim::RunEnd run = sim::carry_out(*plan);
  for (const sim::Finding& finding : sim::break_laws(*plan, run)) {
    ADD_FAILURE() << finding.law << ": " << finding.text;
  }
  return run;
}

// Most of the incoming multicast is noise and most data is lost. The group moves to the ring,
// leaves the address, and returns after the flood.
TEST_F(SwarmKinds, GroupsThatAreFlooded) {
  std::string text = "world hosts=3\nset probe_timeout=50\ngroup ranks=0,1,2\n";
  for (int at = 0; at < 8000; at += 400) {
    text += "op kind=all_gather bytes=14000 at=" + std::to_string(at) + "ms\n";
  }
  text += "op kind=all_gather bytes=14000 at=14s\nop kind=all_gather bytes=14000 at=24s\n";
  text += "fault what=drop rate=0.9 at=300ms for=7700ms\n";
  const sim::RunEnd lossy = lawful_run(text);
  EXPECT_EQ(lossy.groups[0].total(Counter::floods_left), 0u);
  const sim::RunEnd run = lawful_run(
      text + "fault what=flood rank=none lane=0 burst=20 every=5ms at=300ms for=7700ms\n");
  for (const sim::CallEnd& call : run.calls) EXPECT_TRUE(call.ends == 1 && call.status.ok());
  EXPECT_GT(run.count(sim::FaultKind::kFlood), 10'000u);
  EXPECT_EQ(run.groups[0].total(Counter::floods_left), 3u);
  EXPECT_EQ(run.groups[0].total(Counter::path_switches), 6u);
}

// While multicast arrives, an owner that prefers it requests an eighth of its contributions.
TEST_F(SwarmKinds, GrantsWaitWhileMulticastArrives) {
  for (const char* const policy : {"fair", "gather"}) {
    std::string text = std::string("world hosts=4\nset incast=65536 lane_policy=") + policy +
                       "\ngroup ranks=0,1,2,3\n";
    for (int i = 0; i < 3; i++) {
      text += "op kind=broadcast bytes=4000000\nop kind=reduce_scatter bytes=800000\n";
    }
    const sim::RunEnd run = lawful_run(text);
    EXPECT_EQ(run.groups[0].total(Counter::grant_waits) > 0, policy == std::string("gather"));
  }
}

// The top has received the release, closes and ends. A rank that waits for the release below a slow
// rank gets the goodbye first.
TEST_F(SwarmKinds, RanksThatEndInOrder) {
  const uint64_t before = times_at(ReachPoint::goodbye_before_the_release);
  const sim::RunEnd run = lawful_run(
      "world hosts=7\nset arity=2\ngroup ranks=0,1,2,3,4,5,6 early=1\n"
      "op kind=all_gather bytes=3000\nop kind=barrier\nfault what=exit rank=0\n"
      "fault what=exit rank=5\nfault what=delay rank=1 much=3ms for=2s\n");
  for (const sim::CallEnd& call : run.calls) EXPECT_TRUE(call.ends == 1 && call.status.ok());
  EXPECT_EQ(run.count(sim::FaultKind::kExit), 2u);
  EXPECT_GT(times_at(ReachPoint::goodbye_before_the_release), before);
}

// The others give the group up; a minute later their frames for it no longer count as early.
TEST_F(SwarmKinds, GroupThatOneRankNeverMakesHarmsNoLaterGroup) {
  const uint64_t before = times_at(ReachPoint::frame_without_its_group);
  const sim::RunEnd run = lawful_run(
      "world hosts=3\ngroup ranks=0,1,2\ngroup ranks=0,1,2 at=80s\nop kind=barrier\n"
      "op group=1 kind=all_gather bytes=3000\nfault what=absent rank=1\n");
  EXPECT_EQ(run.count(sim::FaultKind::kAbsent), 1u);
  for (const sim::CallEnd& call : run.calls) {
    EXPECT_EQ(call.status.ok() && call.ends == 1, call.op == 1) << call.status.message();
  }
  EXPECT_GT(times_at(ReachPoint::frame_without_its_group), before);
}

// Stations get two lengths of one operation and fold neither.
TEST_F(SwarmKinds, CallsThatDifferAreDeclined) {
  const sim::RunEnd run = lawful_run(
      "world hosts=5\nset incast=65536 aggregator_patience=300\naggregator\naggregator lanes=2\n"
      "group ranks=0,1,2,3,4\nop kind=all_reduce bytes=1200000 odd=1 odd_bytes=1200032\n");
  for (const sim::CallEnd& call : run.calls) EXPECT_FALSE(call.status.ok());
  EXPECT_GT(run.aggregators[0].counters[static_cast<size_t>(Counter::agg_declined)], 0u);
}

}  // namespace
}  // namespace mcast::test
