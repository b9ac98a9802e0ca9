// A station folds without contributors that its ranks exclude, segment by segment as the owners
// decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "aggregation/station_world.h"

namespace mcast {
namespace {

using test::StationWorld;
using ::testing::HasSubstr;
using wire::FrameType;

Sequence partial_call(StationWorld& w) {
  return w.call(wire::Kind::kAllreduce, Element::kFloat32, Reduction::kSum, 3 * 8 * 4096);
}

void say_partial(StationWorld& w, Member rank, Sequence op, const wire::PartialResult& partial) {
  wire::Writer body;
  wire::put_partial(body, partial);
  w.send(rank, w.header(rank, FrameType::kPartial, op), body.bytes());
}

TEST(PartialResults, LeaveWhenTheOwnerHasSaidSo) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence op = partial_call(w);
  w.open_all(op);
  for (uint32_t number = 0; number < 3; number++) {
    for (const Member r : {0, 1}) w.contribute(r, op, number);
  }
  w.take_all();
  EXPECT_EQ(w.results(op), 0u);
  EXPECT_EQ(w.station().job()->blocks(), 3u);
  say_partial(w, 0, op, {2, {4}});
  EXPECT_EQ(w.station().job()->blocks(), 2u) << "its own has left";
  say_partial(w, 0, op, {2, {4}});
  say_partial(w, 1, op, {2, {4}});
  say_partial(w, 2, op, {2, {4}});
  EXPECT_EQ(w.station().job()->blocks(), 0u);
  EXPECT_FALSE(w.station().closed());
  // Later segments of the operation proceed without the excluded rank, and nobody waits for it.
  w.contribute(0, op, 3);
  w.send(1, w.header(1, FrameType::kPing, 0), {});
  w.take_all();
  wire::AggWait wait;
  ASSERT_TRUE(wire::parse_agg_wait(w.others().back().body, wait));
  EXPECT_EQ(wait.missing, std::vector<uint64_t>{2});
  w.contribute(1, op, 3);
  EXPECT_EQ(w.station().job()->blocks(), 0u);
}

TEST(PartialResults, SingleContributorIsDeclined) {
  StationWorld w({.incast = 3 * 4 * 4096});
  const Sequence op = partial_call(w);
  w.open_all(op);
  w.contribute(1, op, 0);
  say_partial(w, 2, op, {1, {5}});
  w.take_all();
  EXPECT_EQ(w.declined(op), 3u);
  EXPECT_EQ(w.station().job()->operations(), 0u) << "all have opened it: it is over";
  say_partial(w, 0, op, {1, {5}});
  EXPECT_EQ(w.count(Counter::agg_stale), 1u);
  EXPECT_FALSE(w.station().closed());
}

// Each declined operation occupies one of the kAhead places only until it is over.
TEST(PartialResults, DeclinedOperationFreesItsPlace) {
  StationWorld w({.incast = 3 * 4 * 4096});
  for (uint32_t i = 0; i <= aggregation::Job::kAhead; i++) {
    const Sequence op = partial_call(w);
    w.open_all(op);
    say_partial(w, 2, op, {1, {5}});
    ASSERT_FALSE(w.station().closed()) << i << ": " << *w.station().closed();
  }
  const Sequence op = partial_call(w);
  w.open_all(op);
  w.take_all();
  EXPECT_EQ(w.declined(op), 0u);
  EXPECT_EQ(w.station().job()->operations(), 1u);
}

TEST(PartialResults, InvalidOneEndsTheJob) {
  const auto ends = [](const char* why, const std::vector<uint32_t>& host_of,
                       const std::function<void(StationWorld&, Sequence)>& what) {
    StationWorld w({.host_of = host_of, .incast = 3 * 4 * 4096});
    const Sequence op = partial_call(w);
    w.open(0, op);
    w.open(1, op);
    what(w, op);
    ASSERT_TRUE(w.station().closed()) << why;
    EXPECT_THAT(*w.station().closed(), HasSubstr(why));
    EXPECT_EQ(w.count(Counter::agg_malformed), 1u);
  };
  using W = StationWorld;
  ends("before it was opened", {}, [](W& w, Sequence op) { say_partial(w, 2, op, {2, {4}}); });
  ends("with impossible values", {}, [](W& w, Sequence op) { say_partial(w, 0, op, {3, {4}}); });
  ends("with impossible values", {0, 1, 0}, [](W& w, Sequence op) {
    say_partial(w, 0, op, {2, {4}});
  });
  ends("with impossible values", {}, [](W& w, Sequence op) {
    say_partial(w, 0, op, {2, {4}});
    say_partial(w, 1, op, {2, {1}});
  });
  ends("without a rank that has contributed", {}, [](W& w, Sequence op) {
    w.contribute(1, op, 0);
    say_partial(w, 0, op, {2, {2}});
  });
  ends("that it has withdrawn", {}, [](W& w, Sequence op) {
    say_partial(w, 0, op, {2, {2}});
    w.contribute(1, op, 0);
  });
  ends("does not parse", {},
       [](W& w, Sequence op) { w.send(0, w.header(0, FrameType::kPartial, op), {}); });
}

}  // namespace
}  // namespace mcast
