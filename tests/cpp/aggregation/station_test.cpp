// Tests a station's rules one by one: windows, declines, queues, and the ends of operations and
// jobs.
#include "aggregation/fold/station.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregation/station_world.h"

namespace mcast {
namespace {

using aggregation::Station;
using test::StationWorld;
using ::testing::HasSubstr;
using wire::FrameType;
using wire::Kind;

constexpr uint64_t kBytes = 3 * 8 * 4096;  // the station has 16 of 24 segments

Sequence some_call(StationWorld& w) {
  return w.call(Kind::kAllreduce, Element::kFloat32, Reduction::kSum, kBytes);
}

TEST(Grants, AreForHalfAWindowAtLeast) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence op = some_call(w);
  w.open_all(op);
  EXPECT_EQ(w.granted(1, op), 8u);
  for (uint32_t number = 0; number < 3; number++) {
    for (const Member r : {0, 1, 2}) w.contribute(r, op, number);
  }
  w.take_all();
  w.turn();
  w.take_all();
  EXPECT_EQ(w.granted(1, op), 8u);
  for (const Member r : {0, 1, 2}) w.contribute(r, op, 3);
  w.take_all();
  EXPECT_EQ(w.granted(1, op), 12u);
  EXPECT_EQ(w.wrong(), "");
}

TEST(Grants, BusyJobsShareTheWindow) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence op = some_call(w);
  w.busy = 2;
  w.open_all(op);
  EXPECT_EQ(w.granted(1, op), 4u);
  w.busy = 100;
  w.contribute_all();
  EXPECT_TRUE(w.all_done()) << "two segments are always allowed";
  EXPECT_EQ(w.wrong(), "");
}

TEST(Grants, OnlyToRanksThatOpenedInOrderOfOperations) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence first = some_call(w), second = some_call(w);
  w.open(0, first);
  w.open(0, second);
  w.take_all();
  EXPECT_EQ(w.granted(0, first), 8u);
  EXPECT_EQ(w.granted(1, first), 0u);
  EXPECT_EQ(w.granted(0, second), 0u);
  w.open(1, first);
  w.open(2, first);
  w.take_all();
  EXPECT_EQ(w.granted(1, first), 8u) << "what the others know";
  w.contribute_all();
  EXPECT_EQ(w.results(first), w.entries(first));
  EXPECT_EQ(w.granted(0, second), 8u);
  EXPECT_EQ(w.granted(1, second), 0u);
  EXPECT_EQ(w.wrong(), "");
}

// If the remaining window is too small for an operation's next grant, a later operation does not
// get it.
TEST(Grants, LaterOperationWaitsForTheEarlierOne) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence first = some_call(w);
  const Sequence second =
      w.call(wire::Kind::kAllreduce, Element::kFloat32, Reduction::kSum, 3 * 4096);
  ASSERT_EQ(w.entries(second), 2u);
  w.open_all(first);
  w.open_all(second);
  for (uint32_t number = 0; number < 3; number++) {
    for (const Member r : {0, 1, 2}) w.contribute(r, first, number);
  }
  w.take_all();
  w.turn();
  w.take_all();
  EXPECT_EQ(w.granted(0, first), 8u);
  EXPECT_EQ(w.granted(0, second), 0u);
  w.contribute_all();
  EXPECT_TRUE(w.all_done());
  EXPECT_EQ(w.wrong(), "");
}

// In a sum of floats every contribution but the first waits for the contributions before it; in a
// sum of integers none waits.
TEST(Results, StagedContributionsAreCounted) {
  for (const Element element : {Element::kFloat32, Element::kInt32}) {
    StationWorld w({.incast = 3 * 4 * 4096});
    const Sequence op =
        w.call(wire::Kind::kAllreduce, element, Reduction::kSum, uint64_t{3} * 4096);
    w.open_all(op);
    w.take_all();
    for (const Member r : {2, 1, 0}) w.contribute(r, op, 0);
    w.take_all();
    EXPECT_EQ(w.results(op), 1u);
    const bool floats = element == Element::kFloat32;  // otherwise owners keep their own part
    EXPECT_EQ(w.count(Counter::reduce_bytes_received), (floats ? 3u : 2u) * 4096);
    EXPECT_EQ(w.count(Counter::agg_staged_bytes), floats ? 2u * 4096 : 0u);
    EXPECT_EQ(w.wrong(), "");
  }
}

TEST(Results, WaitForTheirOwner) {
  StationWorld w({.host_of = {0, 0, 1}, .incast = 2 * 4 * 4096});
  const Sequence op = some_call(w);
  // Member 1 owns the segments to which its host's member 0 does not contribute, and opens last.
  w.open(0, op);
  w.open(2, op);
  w.contribute_all();
  const size_t before = w.results(op);
  EXPECT_LT(before, w.entries(op));
  w.open(1, op);
  w.contribute_all();
  EXPECT_TRUE(w.all_done());
  EXPECT_EQ(w.wrong(), "");
}

TEST(Results, SlowOwnerDelaysOthersByTheWindowOnly) {
  StationWorld w({.ranks = 3, .segment = 60 << 10, .incast = 4 << 20});
  const Sequence op =
      w.call(Kind::kReduceScatter, Element::kFloat32, Reduction::kSum, 40 * (60 << 10));
  for (const Member r : {0, 1, 2}) w.open(r, op);
  // Rank 2 contributes to the first window and then reads nothing more.
  w.take_all();
  for (bool more = true; more;) {
    more = false;
    for (const Member r : {0, 1, 2}) more |= w.contribute_next(r);
    for (const Member r : {0, 1}) w.take(r);
    w.turn();
  }
  EXPECT_GT(w.count(Counter::agg_held), 0u);
  EXPECT_LT(w.results(op), w.entries(op));
  for (int i = 0; i < 500 && !w.all_done(); i++) w.contribute_all();
  EXPECT_TRUE(w.all_done());
  EXPECT_EQ(w.wrong(), "");
}

// Forty owners on two hosts, each with nearly as many bytes queued as are allowed: together they
// would hold more than 4 MiB. StationWorld checks the bound.
TEST(Results, QueuesOfAllOwnersAreBoundedTogether) {
  test::StationOptions o{.ranks = 40, .segment = 60 << 10, .incast = 4 << 20, .share = 3};
  for (uint32_t r = 0; r < o.ranks; r++) o.host_of.push_back(r % 2);
  StationWorld w(o);
  const Sequence op =
      w.call(Kind::kReduceScatter, Element::kFloat32, Reduction::kSum, 3 * (60 << 10));
  w.open_all(op);
  for (bool more = true; more;) {
    more = false;
    for (Member r = 0; r < o.ranks; r++) {
      more |= w.contribute_next(r);
      while (w.waiting(r) > 121 << 10) w.take(r, 1);
      w.take_grants(r);
    }
    w.turn();
  }
  EXPECT_GT(w.count(Counter::agg_held), 0u);
  for (int i = 0; i < 500 && !w.all_done(); i++) w.contribute_all();
  EXPECT_TRUE(w.all_done());
  EXPECT_EQ(w.wrong(), "");
}

TEST(Declines, ReachEveryRankThatOpens) {
  StationWorld w({});
  const Sequence op = some_call(w), next = some_call(w);
  w.refuse(op);
  w.open(0, op);
  w.take_all();
  EXPECT_EQ(w.declined(op), 1u);
  w.open_all(op);  // rank 0 opens it again: a repetition
  EXPECT_EQ(w.count(Counter::agg_repeated), 1u);
  EXPECT_EQ(w.declined(op), 3u);
  EXPECT_EQ(w.count(Counter::agg_declined), 1u);
  EXPECT_EQ(w.station().job()->operations(), 0u);
  w.open_all(next);
  w.contribute_all();
  EXPECT_TRUE(w.all_done()) << "of this operation only";
  EXPECT_EQ(w.wrong(), "");
}

// The ranks call different operations: no rank's bytes are folded with another rank's.
TEST(Declines, CrossRunningContributions) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence op = some_call(w), next = some_call(w);
  w.open(0, op);
  w.open(1, op);
  w.take_all();
  w.contribute(0, op, 0);
  w.contribute(1, op, 0);
  EXPECT_EQ(w.station().job()->blocks(), 1u);
  wire::AggOpen other{StationWorld::kRoster, {}};
  other.descriptor.kind = Kind::kReduceScatter;
  other.descriptor.element = static_cast<uint8_t>(Element::kInt8);
  other.descriptor.reduction = static_cast<uint8_t>(Reduction::kSum);
  other.descriptor.bytes = 100;
  wire::FrameHeader h = w.header(2, FrameType::kAggOpen, op);
  h.argument = other.descriptor.hash();
  wire::Writer body;
  wire::put_agg_open(body, other);
  w.send(2, h, body.bytes());
  w.contribute(0, op, 1);  // sent before the decline arrived
  w.take_all();
  EXPECT_EQ(w.declined(op), 3u);
  EXPECT_EQ(w.count(Counter::agg_stale), 1u);
  EXPECT_EQ(w.station().job()->blocks(), 0u);
  EXPECT_EQ(w.station().job()->operations(), 0u);
  w.open_all(next);
  EXPECT_EQ(w.granted(0, next), 8u) << "the whole window is free again";
  while (w.contribute_next(0)) {
  }
  EXPECT_EQ(w.station().job()->blocks(), 8u) << "and every place";
  w.contribute_all();
  EXPECT_EQ(w.results(next), w.entries(next));
  EXPECT_EQ(w.wrong(), "");
}

TEST(Declines, OperationsThatCannotBeFolded) {
  StationWorld w({});
  const auto declined = [&w](Kind kind, unsigned element, unsigned reduction) {
    const Sequence op = some_call(w);
    wire::AggOpen open{StationWorld::kRoster, {}};
    open.descriptor.kind = kind;
    open.descriptor.element = static_cast<uint8_t>(element);
    open.descriptor.reduction = static_cast<uint8_t>(reduction);
    wire::FrameHeader h = w.header(0, FrameType::kAggOpen, op);
    h.argument = open.descriptor.hash();
    wire::Writer body;
    wire::put_agg_open(body, open);
    w.send(0, h, body.bytes());
    w.take_all();
    return w.declined(op) == 1;
  };
  EXPECT_TRUE(declined(Kind::kAllgather, 2, 1));
  EXPECT_TRUE(declined(Kind::kAllreduce, 0, 1));
  EXPECT_TRUE(declined(Kind::kAllreduce, 77, 1));
  EXPECT_TRUE(declined(Kind::kAllreduce, 2, 0));
  EXPECT_TRUE(declined(Kind::kAllreduce, 2, 10));
  // This type's accumulators are longer than those of a station.
  EXPECT_TRUE(declined(Kind::kAllreduce, static_cast<unsigned>(Element::kFloat8E5M2), 1));
  EXPECT_TRUE(declined(Kind::kAllreduce, 2, static_cast<unsigned>(Reduction::kBitXor)));
  EXPECT_FALSE(w.station().closed());
}

TEST(Rosters, OneThatThePlannerDoesNotKnowIsDeclined) {
  StationWorld w({});
  const Sequence op = some_call(w);
  wire::AggOpen open{StationWorld::kRoster + 1, {}};
  open.descriptor.kind = Kind::kReduceScatter;
  open.descriptor.element = static_cast<uint8_t>(Element::kInt8);
  open.descriptor.reduction = static_cast<uint8_t>(Reduction::kSum);
  open.descriptor.bytes = 100;
  wire::FrameHeader header = w.header(0, FrameType::kAggOpen, op);
  header.argument = open.descriptor.hash();
  wire::Writer body;
  wire::put_agg_open(body, open);
  w.send(0, header, body.bytes());
  w.take_all();
  EXPECT_EQ(w.count(Counter::agg_declined), 1u);
  EXPECT_EQ(w.declined(op), 1u);
  EXPECT_FALSE(w.station().closed());
}

// ---- ends of a job ----

// Opens two operations at all ranks, applies `bad`, and expects the job to end with this text.
template <typename Bad>
void ends_with(const std::string& text, Bad bad) {
  StationWorld w({.incast = 3 * 2 * 4096});
  const Sequence op = some_call(w);
  some_call(w);
  w.open_all(op);
  bad(w);
  ASSERT_TRUE(w.station().closed()) << text;
  EXPECT_THAT(*w.station().closed(), HasSubstr(text));
  EXPECT_EQ(w.station().job(), nullptr);
  EXPECT_EQ(w.count(Counter::agg_malformed), 1u) << text;
  EXPECT_EQ(w.station().deadline(), kNever);
  w.contribute(0, op, 0);  // no owner takes it
  w.turn(kSecond);
  EXPECT_EQ(w.wrong(), "");
}

TEST(Violations, EndTheJob) {
  ends_with("rank 1 broke the protocol of operation 0: a contribution that was not asked for",
            [](StationWorld& w) { w.contribute(1, 0, 4); });
  ends_with("out of order", [](StationWorld& w) { w.contribute(1, 0, 1); });
  ends_with("of another length", [](StationWorld& w) { w.contribute(1, 0, 0, 4000); });
  ends_with("before it was opened", [](StationWorld& w) { w.contribute(1, 1, 0); });
  ends_with("beyond its list", [](StationWorld& w) {
    wire::Writer body;
    wire::put_reduce_head(body, w.entries(0), 1);
    body.put<uint32_t>(1);
    w.send(1, w.header(1, FrameType::kReduceData, 0), body.bytes());
  });
  ends_with("to another operation", [](StationWorld& w) {
    wire::FrameHeader h = w.header(1, FrameType::kReduceData, 0);
    h.argument ^= 1;
    w.send(1, h, w.contribution(1, 0, 0).bytes());
  });
  ends_with("an operation that differs from its hash", [](StationWorld& w) {
    wire::FrameHeader h = w.header(1, FrameType::kAggOpen, 1);
    h.argument ^= 1;
    wire::Writer body;
    wire::put_agg_open(body, {StationWorld::kRoster, {}});
    w.send(1, h, body.bytes());
  });
  ends_with("a frame in the name of another rank (reduce_data)", [](StationWorld& w) {
    w.send(2, w.header(1, FrameType::kReduceData, 0), w.contribution(1, 0, 0).bytes());
  });
  ends_with("a frame that stations do not accept (credit)",
            [](StationWorld& w) { w.send(2, w.header(2, FrameType::kCredit, 0), {}); });
  for (const FrameType type : {FrameType::kAggOpen, FrameType::kReduceData}) {
    ends_with("does not parse", [type](StationWorld& w) { w.send(2, w.header(2, type, 0), {}); });
  }
  ends_with("more than 64 operations ahead", [](StationWorld& w) {
    for (Sequence op = 2; op < 70 && !w.station().closed(); op++) {
      some_call(w);
      w.open(0, op);
    }
  });
}

TEST(Violations, AnotherRanksContribution) {
  StationWorld w({.ranks = 4, .host_of = {0, 0, 1, 1}, .incast = 32 << 10});
  const Sequence op = some_call(w);
  w.open_all(op);
  for (const Member r : {0, 1}) w.contribute(r, op, 0);
  ASSERT_TRUE(w.station().closed());
  EXPECT_THAT(*w.station().closed(), HasSubstr("that another rank has to send"));
}

TEST(Violations, ACorruptFrameEndsTheJob) {
  StationWorld w({});
  w.open_all(some_call(w));
  const std::byte noise[40] = {};
  w.send_raw(1, noise);
  ASSERT_TRUE(w.station().closed());
  EXPECT_THAT(*w.station().closed(), HasSubstr("rank 1 sent a frame that is corrupt"));
  EXPECT_EQ(w.count(Counter::corrupt), 1u);
}

TEST(Ends, JobEndsWithTheGroup) {
  StationWorld w({});
  w.open_all(some_call(w));
  w.station().on_bye();
  EXPECT_EQ(*w.station().closed(), "the group has ended");
  w.station().on_bye();
  w.station().on_stream_end(0, w.now());
}

TEST(Ends, JobEndsWithTheLastStream) {
  StationWorld w({.incast = 3 * 2 * 4096});
  const Sequence op = some_call(w);
  w.open_all(op);
  w.station().on_stream_end(1, w.now());
  const uint32_t granted = w.granted(0, op);
  w.contribute_all();
  EXPECT_EQ(w.granted(0, op), granted) << "what rank 1 would have to contribute to";
  EXPECT_FALSE(w.station().closed());
  w.station().on_stream_end(0, w.now());
  w.station().on_stream_end(2, w.now());
  EXPECT_EQ(*w.station().closed(), "all ranks have left");
}

TEST(Ends, WithoutARankNothingIsGranted) {
  StationWorld w({});
  const Sequence op = some_call(w);
  w.station().on_stream(2);
  w.station().on_stream(1);
  w.station().on_stream_end(2, w.now());
  w.open_all(op);
  w.turn();
  w.take_all();
  EXPECT_EQ(w.granted(0, op), 0u);
  EXPECT_FALSE(w.station().closed());
}

// The job ends although other ranks stay: a rank whose group has failed has no reason to close its
// streams.
TEST(Ends, JobEndsSoonAfterTheFirstStream) {
  StationWorld w({});
  w.open_all(some_call(w));
  w.turn(Station::kLease);
  EXPECT_FALSE(w.station().closed());
  w.station().on_stream_end(1, w.now());
  EXPECT_LE(w.station().deadline(), w.now() + Station::kFarewell);
  w.turn(Station::kFarewell - 1);
  EXPECT_FALSE(w.station().closed());
  w.turn(1);
  EXPECT_EQ(*w.station().closed(), "rank 1 has left");
}

TEST(Ends, JobEndsIfNoRankConnects) {
  StationWorld w({});
  w.turn(Station::kLease - 1);
  EXPECT_FALSE(w.station().closed());
  EXPECT_LE(w.station().deadline(), w.now() + 1);
  w.turn(1);
  EXPECT_EQ(*w.station().closed(), "no rank has connected");
  StationWorld visited({});
  visited.station().on_stream(0);
  visited.turn(2 * Station::kLease);
  EXPECT_FALSE(visited.station().closed());
}

// ---- reports of late ranks ----

TEST(Idle, IsReportedToMemberZero) {
  StationWorld w({.incast = 3 * 2 * 4096, .deadline = 100 * kMilli});
  const Sequence op = some_call(w);
  w.open_all(op);
  for (const Member r : {0, 2}) w.contribute(r, op, 0);
  for (int i = 0; i < 40 && w.others().empty(); i++) {
    w.turn(10 * kMilli);
    w.take_all();
  }
  ASSERT_EQ(w.others().size(), 1u);
  const auto& told = w.others()[0];
  EXPECT_EQ(told.to, 0);
  EXPECT_EQ(told.header.type, FrameType::kAggStale);
  EXPECT_EQ(told.header.sequence, op);
  wire::AggWait wait;
  ASSERT_TRUE(wire::parse_agg_wait(told.body, wait));
  EXPECT_EQ(wait.number, 0u);
  EXPECT_EQ(wait.missing, std::vector<uint64_t>{2});
  EXPECT_GE(wait.age_ms, 100u);
  EXPECT_EQ(w.count(Counter::agg_idle), 1u);
}

TEST(Idle, PingReplyNamesTheMissingRanks) {
  StationWorld w({.incast = 3 * 2 * 4096});
  const Sequence op = some_call(w);
  const auto ping = [&w] {
    w.send(1, w.header(1, FrameType::kPing, 0), {});
    w.take_all();
    return w.others().back();
  };
  EXPECT_TRUE(ping().body.empty());
  w.open_all(op);
  wire::AggWait wait;
  ASSERT_TRUE(wire::parse_agg_wait(ping().body, wait));
  EXPECT_TRUE(wait.missing.empty()) << "nothing has come";
  w.contribute(1, op, 0);
  w.contribute(1, op, 1);
  w.contribute(2, op, 0);
  const auto pong = ping();
  EXPECT_EQ(pong.header.type, FrameType::kPong);
  EXPECT_EQ(pong.header.sequence, op);
  ASSERT_TRUE(wire::parse_agg_wait(pong.body, wait));
  EXPECT_EQ(wait.number, 0u);
  EXPECT_EQ(wait.missing, std::vector<uint64_t>{1});
}

// A rank is reported as late if its contribution is missing, or if it is an owner and only its own
// part is still due.
TEST(Idle, ARankThatIsLateIsNamed) {
  StationWorld w({.fold = FoldOrder::kTurn, .incast = 3 * 4 * 4096, .keep = true});
  const Sequence op = some_call(w);
  w.open(0, op);
  w.open(1, op);
  w.take_all();
  while (w.contribute_next(0) || w.contribute_next(1)) w.take_all();
  w.send(1, w.header(1, FrameType::kPing, 0), {});
  w.take_all();
  ASSERT_FALSE(w.others().empty());
  wire::AggWait wait;
  ASSERT_TRUE(wire::parse_agg_wait(w.others().back().body, wait));
  EXPECT_EQ(wait.missing, std::vector<uint64_t>{4});
}

}  // namespace
}  // namespace mcast
