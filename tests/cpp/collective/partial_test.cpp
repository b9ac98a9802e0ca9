// Reductions that do not wait for late ranks: each operation has one mask, and the same result on
// all ranks, also on those whose inputs it lacks. (With stations:
// aggregation/partial_stations_test.)
#include <gmock/gmock.h>

#include "collective/partial_world.h"
#include "support/errors.h"

namespace mcast::test {
namespace {

using testing::ElementsAre;
using wire::Kind;

void expect_partial(const ClusterOptions& o, const PartialCall& call,
                    const std::vector<Member>& late) {
  Cluster c(o);
  PartialWorld w(c);
  expect_partial(w, call, late);
}

TEST(Partial, EndsWithoutALateRank) {
  for (const auto& [options, call, name] : partial_cases()) {
    SCOPED_TRACE(name);
    expect_partial(options, call, {2});
  }
}

TEST(Partial, WithoutSeveralRanksMemberZeroAmongThem) {
  for (const std::vector<Member>& late :
       {std::vector<Member>{0}, {0, 4}, {1, 2, 3}, {3, 4}, {0, 1, 2, 3}, {1, 2, 3, 4}}) {
    for (const Element element : {Element::kInt32, Element::kFloat32}) {
      SCOPED_TRACE(testing::PrintToString(late));
      ClusterOptions o = partial_options(5);
      o.group.arity = 2;
      o.group.agreed.fold = FoldOrder::kRank;
      expect_partial(o, {Kind::kAllreduce, element}, late);
    }
  }
}

TEST(Partial, SmallBlocksAndTheRing) {
  for (const bool ring : {false, true}) {
    ClusterOptions o = partial_options(4);
    o.group.multicast.wanted = !ring;
    expect_partial(o, {Kind::kReduceScatter, Element::kFloat32, Reduction::kSum, 4096}, {3});
    expect_partial(o, {Kind::kAllreduce, Element::kFloat32, Reduction::kSum, 300'001 * 4}, {0});
  }
}

TEST(Partial, StandInsSendTheDigestsOfTheirBlocks) {
  for (const ClusterOptions& o : partial_options_with_digests()) {
    expect_partial(o, {Kind::kAllreduce, Element::kFloat32}, {1});
  }
}

// The number of results that wait for a rank's calls is bounded. Beyond it, the group waits for the
// rank until it has caught up.
TEST(Partial, ARankWithoutRoomForMoreResultsIsWaitedFor) {
  for (const Member late : {0, 2}) {
    ClusterOptions o = partial_options(4);
    const auto d = PartialCall{}.of(4);
    o.group.partial_memory = 2 * d.bytes;
    Cluster c(o);
    PartialWorld w(c);
    std::vector<Runs> ops;
    for (uint64_t id = 1; id <= 3; id++) ops.push_back(call_all_but(w, d, id, {late}));
    w.c.run_for(kSecond);
    EXPECT_TRUE(all_done(ops[0]) && all_done(ops[1]));
    EXPECT_FALSE(all_done(ops[2])) << "excused without room";
    for (uint64_t id = 1; id <= 3; id++) ops[2].push_back(w.c.call(late, d, id));
    finish(w.c, ops[2]);
    EXPECT_THAT(w.missing(1), ElementsAre(late));
    EXPECT_TRUE(w.missing(2).empty());
    // There is room for two again.
    for (uint64_t id = 4; id <= 5; id++) ops[id - 4] = call_all_but(w, d, id, {late});
    ASSERT_TRUE(w.c.run([&] { return all_done(ops[0]) && all_done(ops[1]); }, kSecond));
    for (uint64_t id = 4; id <= 5; id++) ops[1].push_back(w.c.call(late, d, id));
    finish(w.c, ops[1]);
    EXPECT_EQ(w.check_counts(), "");
    EXPECT_EQ(w.c.total(Counter::partial_results), 4u * 4);
  }
}

// Its input may still be in transfer from a device.
TEST(Partial, ACallEndsWhenItsInputIsNotWrittenAnyMore) {
  Cluster c(partial_options(4));
  PartialWorld w(c);
  const auto d = PartialCall{}.of(4);
  Runs runs = call_all_but(w, d, 1, {2});
  ASSERT_TRUE(w.c.run([&] { return all_done(runs); }, kSecond));
  std::shared_ptr<Region> staged;
  w.adjust = [&](Member, Post& post) {
    staged = post.reduce->inputs[0].region;
    staged->set_readable(0);
  };
  runs.push_back(w.c.call(2, d, 1));
  w.c.run_for(kSecond);
  EXPECT_FALSE(runs.back()->done());
  staged->set_readable(staged->size());
  staged.reset();
  finish(w.c, runs);
}

TEST(Partial, ADifferentCallIsAMismatch) {
  Cluster c(partial_options(4));
  PartialWorld w(c);
  Runs runs = call_all_but(w, PartialCall{}.of(4), 1, {2});
  ASSERT_TRUE(w.c.run([&] { return all_done(runs); }, kSecond));
  const auto other = w.c.call(2, PartialCall{Kind::kReduceScatter}.of(4), 1);
  ASSERT_TRUE(w.c.run([&] { return other->done(); }, kSecond));
  EXPECT_TRUE(calls_differ(other->status, 0, PartialCall{}.of(4).to_string(), 2,
                           PartialCall{Kind::kReduceScatter}.of(4).to_string()));
  ASSERT_TRUE(w.c.run([&] { return w.c.group(0).core().failed(); }, kSecond));
}

// Operations that cannot end without a rank wait for it.
TEST(Partial, OtherOperationsWait) {
  const wire::Descriptor barrier{Kind::kBarrier, 0xff, kNoMember, 0, ""};
  wire::Descriptor reduce = PartialCall{Kind::kReduce}.of(4);
  reduce.root = 1;
  for (const auto& d : {barrier, reduce, PartialCall{.bytes = 64}.of(4)}) {
    SCOPED_TRACE(d.to_string());
    Cluster c(partial_options(4));
    PartialWorld w(c);
    Runs runs = call_all_but(w, d, 1, {2});
    w.c.run_for(kSecond);
    EXPECT_FALSE(runs[d.kind == Kind::kReduce ? 1 : 0]->done());
    runs.push_back(w.c.call(2, d, 1));
    finish(w.c, runs);
    EXPECT_EQ(w.c.total(Counter::partial_results), 0u);
  }
}

TEST(Partial, RanksOfAHostWait) {
  ClusterOptions o = partial_options(4);
  o.group.host_of = {0, 1, 2, 0};
  Cluster c(o);
  PartialWorld w(c);
  const auto d = PartialCall{}.of(4);
  Runs runs = call_all_but(w, d, 1, {2});
  w.c.run_for(kSecond);
  EXPECT_FALSE(all_done(runs));
  runs.push_back(w.c.call(2, d, 1));
  finish(w.c, runs);
  EXPECT_EQ(w.c.total(Counter::partial_results), 0u);
}

}  // namespace
}  // namespace mcast::test
