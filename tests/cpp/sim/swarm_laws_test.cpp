// Tests the invariants ("laws") of the randomized test: each reports a run that breaks it, and no
// other run.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "sim/swarm/laws.h"

namespace mcast::test {
namespace {

using sim::Finding;

// The streams of one lane are cut for seconds in the middle of its operation. The other lane's
// operation does not wait; otherwise a law would report it.
TEST(SwarmLaws, ALaneDoesNotWaitForTheOther) {
  const sim::Plan plan = sim::parse(
                             "world hosts=3\ngroup ranks=0,1,2\n"
                             "op kind=broadcast bytes=8000000\nop kind=all_reduce bytes=3000\n"
                             "fault what=cut rank=0 lane=0 at=3ms for=4s\n")
                             .value();
  sim::RunEnd run = sim::carry_out(plan);
  EXPECT_TRUE(sim::break_laws(plan, run).empty());
  EXPECT_GT(run.calls[0].done, 4 * kSecond) << "cut in time";
  EXPECT_LT(run.calls[1].done, kSecond);
  run.calls[1].done = run.calls[0].done;  // member 0's all_reduce
  const std::vector<Finding> findings = sim::break_laws(plan, run);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].law, "time");
}

// Laws that never report would pass everything, so each is shown a run that breaks it.
TEST(SwarmLaws, ReportRunsThatBreakThem) {
  const sim::Plan plan = sim::parse(
                             "world hosts=3\ngroup ranks=0,1,2\nop kind=all_gather bytes=3000\n"
                             "op kind=barrier\n")
                             .value();
  const sim::RunEnd good = sim::carry_out(plan);
  EXPECT_TRUE(sim::break_laws(plan, good).empty());
  const auto law = [&](auto&& change) {
    sim::RunEnd run = good;
    change(run);
    const std::vector<Finding> findings = sim::break_laws(plan, run);
    return findings.empty() ? std::string("none") : findings[0].law;
  };
  const Status lost = make_error<ErrorId::rank_silent>(1, "3.0 s", "2.0 s");
  EXPECT_EQ(law([](auto& run) { run.calls[0].ends = 2; }), "once");
  EXPECT_EQ(law([](auto& run) { run.calls[2].wrong = "wrong byte 7"; }), "bytes");
  EXPECT_EQ(law([](auto& run) { run.calls[0].posted = run.calls[2].done + 1; }), "agreement");
  EXPECT_EQ(law([&](auto& run) { run.calls[1].status = lost; }), "blame");
  EXPECT_EQ(law([](auto& run) { run.over_at = 3600 * kSecond; }), "time");
  EXPECT_EQ(law([](auto& run) { run.busy = true; }), "time");
  EXPECT_EQ(law([](auto& run) { run.calls[2].done = 3600 * kSecond; }), "time");
  EXPECT_EQ(law([](auto& run) { run.overstaged = 1; }), "memory");
  EXPECT_EQ(law([](auto& run) { run.heap.assign(3, {1 << 20, 0}); }), "memory");
  EXPECT_EQ(law([](auto& run) { run.heap.assign(3, {0, 20'000}); }), "memory");
  EXPECT_EQ(law([](auto& run) { run.aggregators = {{.overdrawn = 1}}; }), "memory");
  EXPECT_EQ(law([](auto& run) { run.aggregators = {{.malformed = 1}}; }), "agreement");
  EXPECT_EQ(law([](auto& run) {
              run.aggregators.resize(1);
              run.aggregators[0].counters[static_cast<size_t>(Counter::agg_repeated)] = 1;
            }),
            "agreement");
  EXPECT_EQ(law([](auto& run) { run.aggregators = {{.runs = true, .jobs = 1}}; }), "quiet");
  EXPECT_EQ(law([](auto& run) { run.aggregators = {{.runs = true, .reserved = 1}}; }), "quiet");
  EXPECT_EQ(law([](auto& run) { run.spins = 100; }), "quiet");
  EXPECT_EQ(law([](auto& run) { run.sent_idle = 1; }), "quiet");
  EXPECT_EQ(law([](auto& run) { run.sent_closed = 1; }), "quiet");
  EXPECT_EQ(law([](auto& run) { run.still = false; }), "quiet");
  EXPECT_EQ(law([](auto& run) { run.data_packets++; }), "balance");
  EXPECT_EQ(
      law([](auto& run) { run.groups[0].counters[static_cast<size_t>(Counter::chunks_placed)]--; }),
      "balance");
}

// Dependencies between ranks in an exchange, matching lengths, and bytes that have crossed the
// network.
TEST(SwarmLaws, ReportExchangesThatBreakThem) {
  const sim::Plan plan = sim::parse(
                             "world hosts=3\ngroup ranks=0,1,2\nop kind=all_to_all\n"
                             "op kind=gather root=1 bytes=50000\nop kind=scatter bytes=10\n"
                             "op kind=all_to_all bytes=5000 splits=1\n")
                             .value();
  const sim::RunEnd good = sim::carry_out(plan);
  EXPECT_TRUE(sim::break_laws(plan, good).empty());
  const auto late = [&](uint32_t op, Member member) {
    sim::RunEnd run = good;
    for (sim::CallEnd& call : run.calls) {
      if (call.op == op && call.member == member) call.called = false;
    }
    size_t told = 0;
    for (const Finding& finding : sim::break_laws(plan, run)) told += finding.law == "agreement";
    return told;
  };
  EXPECT_EQ(late(0, 2), 2u) << "an empty block is a word, too";
  EXPECT_EQ(late(1, 0), 1u) << "the root needs the block";
  EXPECT_EQ(late(1, 1), 2u) << "the root must ask for what is long";
  EXPECT_EQ(late(2, 2), 0u) << "short blocks leave unasked";
  EXPECT_EQ(late(2, 0), 2u);
  sim::RunEnd run = good;
  run.groups[0].counters[static_cast<size_t>(Counter::exchange_bytes_received)]--;
  ASSERT_FALSE(sim::break_laws(plan, run).empty());
  EXPECT_EQ(sim::break_laws(plan, run)[0].law, "balance");
  // If two ranks' blocks for each other differ, not both may succeed.
  sim::Plan odd = plan;
  odd.ops[0].odd = 1;
  odd.ops[0].odd_bytes = 7;
  const std::vector<Finding> findings = sim::break_laws(odd, good);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].law, "agreement");
  for (const Finding& finding : sim::break_laws(odd, sim::carry_out(odd))) {
    ADD_FAILURE() << finding.law << ": " << finding.text;
  }
}

TEST(SwarmLaws, ReportMessagesThatBreakThem) {
  const sim::Plan plan = sim::parse(
                             "world hosts=3\ngroup ranks=0,1,2\nop kind=barrier\n"
                             "op kind=all_reduce bytes=40000 at=20ms\n"
                             "message bytes=50000\nmessage from=2 to=1 bytes=10 by=9ms\n")
                             .value();
  const sim::RunEnd good = sim::carry_out(plan);
  EXPECT_TRUE(sim::break_laws(plan, good).empty());
  const auto law = [&](auto change) {
    sim::RunEnd run = good;
    for (sim::MessageEnd& end : run.messages) change(end);
    const std::vector<Finding> findings = sim::break_laws(plan, run);
    return findings.empty() ? std::string() : findings[0].law;
  };
  using sim::MessageEnd;
  EXPECT_EQ(law([](MessageEnd& end) { end.ends += end.message; }), "once");
  EXPECT_EQ(law([](MessageEnd& end) { end.wrong = end.receives ? "x" : ""; }), "bytes");
  EXPECT_EQ(law([](MessageEnd& end) { end.called = end.called && end.receives; }), "agreement");
  EXPECT_EQ(law([](MessageEnd& end) { end.posted = end.receives ? 0 : kSecond; }), "agreement");
  EXPECT_EQ(law([](MessageEnd& end) {
              if (end.message == 0) end.status = Status(Code::kClosed, "x");
            }),
            "agreement")
      << "the same rank's next call ends well";
  EXPECT_EQ(law([](MessageEnd& end) {
              if (end.message == 1) end.done = end.posted, end.status = Status(Code::kClosed, "x");
            }),
            "blame");
  sim::RunEnd run = good;
  run.over = false;
  run.messages[0].ends = 0;
  EXPECT_EQ(sim::break_laws(plan, run)[0].law, "time");
  for (const Counter counter : {Counter::messages_sent, Counter::message_bytes_received}) {
    run = good;
    run.groups[0].counters[static_cast<size_t>(counter)]--;
    EXPECT_EQ(sim::break_laws(plan, run)[0].law, "balance");
  }
}

// A group that has moved to the ring and back; one that did so only on some ranks, or did not
// return; and bytes that no rank can have sent.
TEST(SwarmLaws, ReportPathsThatBreakThem) {
  std::string text = "world hosts=3\nset probe_timeout=50\ngroup ranks=0,1,2\n";
  for (int i = 0; i < 100; i++) {
    text += "op kind=all_gather bytes=40000 at=" + std::to_string(2 * i) + "ms\n";
  }
  const sim::Plan plan = sim::parse(text +
                                    "op kind=all_gather bytes=40000 at=5500ms\n"
                                    "op kind=all_gather bytes=40000 at=7s\n"
                                    "fault what=mute rank=none at=5ms for=300ms\n")
                             .value();
  const sim::RunEnd good = sim::carry_out(plan);
  EXPECT_TRUE(sim::break_laws(plan, good).empty());
  EXPECT_EQ(good.groups[0].total(Counter::path_switches), 6u);
  const auto law = [&](auto&& change) {
    sim::RunEnd run = good;
    change(run.groups[0]);
    const std::vector<Finding> findings = sim::break_laws(plan, run);
    return findings.empty() ? std::string("none") : findings[0].law;
  };
  const auto count = [](sim::GroupEnd& group, Counter counter) -> uint64_t& {
    return group.counters[static_cast<size_t>(counter)];
  };
  EXPECT_EQ(law([&](auto& group) { count(group, Counter::path_switches)--; }), "path");
  EXPECT_EQ(law([&](auto& group) { count(group, Counter::path_switches) = 3; }), "path");
  EXPECT_EQ(law([](auto& group) { group.multicast = false; }), "path");
  EXPECT_EQ(law([&](auto& group) { count(group, Counter::malformed)++; }), "agreement");
  EXPECT_EQ(law([&](auto& group) { count(group, Counter::corrupt)++; }), "agreement");
  EXPECT_EQ(law([&](auto& group) { count(group, Counter::floods_left)++; }), "path");
}

}  // namespace
}  // namespace mcast::test
