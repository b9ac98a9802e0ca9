// Ranks that leave. Each closes after its last call, and leaves when all ranks have confirmed all
// its operations, however late they are. A rank that has left is not missed and delays no one.
#include <gtest/gtest.h>

#include "collective/path_world.h"
#include "support/errors.h"

namespace mcast::test {
namespace {

// Closes ranks as lanes do: a rank leaves when it is quiet, with a goodbye.
class Closers {
 public:
  explicit Closers(Cluster& c) : c_(c), closes_(c.size()), left_(c.size()) {}

  void close(Member r) {
    closes_[r] = true;
    c_.group(r).core().close(c_.clock(r));
  }
  // Must be called whenever anything may have happened.
  bool all_left() {
    bool all = true;
    for (Member r = 0; r < c_.size(); r++) {
      if (closes_[r] && !left_[r] && c_.group(r).core().quiet()) {
        left_[r] = true;
        c_.group(r).core().leave(c_.clock(r));
        c_.lane(r).transport().stream().close_peers(c_.clock(r));
      }
      all = all && (left_[r] || !closes_[r]);
    }
    return all;
  }
  bool left(Member r) const { return left_[r]; }

 private:
  Cluster& c_;
  std::vector<bool> closes_, left_;
};

using CallOf = std::function<std::shared_ptr<OpRun>(Cluster&, Member)>;
struct LateCall {
  const char* name;
  CallOf call;
};
const LateCall kLateCalls[] = {
    {"broadcast", [](Cluster& c, Member r) { return c.broadcast(r, 0, 16, 1); }},
    {"large_broadcast", [](Cluster& c, Member r) { return c.broadcast(r, 0, 300'000, 1); }},
    {"all_gather", [](Cluster& c, Member r) { return c.allgather(r, 16, 1); }},
    {"gather", [](Cluster& c, Member r) { return c.exchange(r, wire::Kind::kGather, 1, 64, 1); }},
    {"reduce", [](Cluster& c, Member r) { return c.reduction(r, wire::Kind::kReduce, 1, 64, 1); }},
    {"barrier", [](Cluster& c, Member r) { return c.barrier(r); }},
};

// parameters: the operation, whether on the ring, the late rank
class CloserBeforeLateRank : public testing::TestWithParam<std::tuple<int, bool, Member>> {};

// The late rank is late by twice the liveness limit. The others have made their calls and close at
// once.
TEST_P(CloserBeforeLateRank, WaitsForIt) {
  const int which = std::get<0>(GetParam());
  const bool ring = std::get<1>(GetParam());
  const Member late = std::get<2>(GetParam());
  ClusterOptions options = ranks(4, ring);
  options.group.lane = 1;
  Cluster c(options);
  Closers closing(c);
  Runs runs;
  for (Member r = 0; r < 4; r++) {
    if (r == late) continue;
    runs.push_back(kLateCalls[which].call(c, r));
    closing.close(r);
  }
  c.run([&] { return closing.all_left(); }, 40 * kSecond);
  for (Member r = 0; r < 4; r++) EXPECT_FALSE(closing.left(r)) << r;
  runs.push_back(kLateCalls[which].call(c, late));
  closing.close(late);
  ASSERT_TRUE(c.run([&] { return closing.all_left() && all_done(runs); }, kSecond));
  expect_good(runs, 4);
  for (Member r = 0; r < 4; r++) {
    EXPECT_FALSE(c.group(r).core().failed()) << c.group(r).core().failure().to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, CloserBeforeLateRank,
                         testing::Combine(testing::Range(0, 6), testing::Bool(),
                                          testing::Values<Member>(1, 2, 3)),
                         [](const auto& i) {
                           return std::string(kLateCalls[std::get<0>(i.param)].name) +
                                  (std::get<1>(i.param) ? "_ring_" : "_") +
                                  std::to_string(std::get<2>(i.param));
                         });

TEST(Leaving, UnconfirmedOperationNamesTheLateRankAtItsLimit) {
  for (const Member closer : {0, 2}) {
    Cluster c(ranks(3));
    Closers closing(c);
    const auto run = c.broadcast(closer, closer, 16, 1, 10 * kSecond);
    closing.close(closer);
    ASSERT_TRUE(c.run([&] { return run->done(); }, kSecond));
    EXPECT_TRUE(run->status.ok());
    EXPECT_FALSE(c.run([&] { return closing.all_left(); }, 9 * kSecond));
    ASSERT_TRUE(c.run([&] { return closing.all_left(); }, 6 * kSecond));
    const Status& why = c.group(closer).core().failure();
    EXPECT_TRUE(is_error(why, ErrorId::ranks_late, {{"ranks", closer == 0 ? "1, 2" : "0, 1"}}));
    EXPECT_TRUE(has(why, "broadcast")) << why.message();
  }
}

TEST(Leaving, RankThatLeavesWithoutTheCallFailsTheOthers) {
  for (const bool closes_first : {true, false}) {
    Cluster c(ranks(3));
    Closers closing(c);
    const auto run = c.broadcast(0, 0, 16, 1);
    ASSERT_TRUE(c.run([&] { return run->done(); }, kSecond));
    closing.close(closes_first ? 0 : 1);
    c.run([&] { return closing.all_left(); }, 100 * kMilli);
    closing.close(closes_first ? 1 : 0);
    ASSERT_TRUE(c.run([&] { return closing.all_left(); }, kSecond));
    EXPECT_TRUE(is_error(c.group(0).core().failure(), ErrorId::rank_left_before,
                         {{"rank", "1"}, {"sequence", "0"}}));
  }
}

// Rank 2's goodbye arrives; the top's release to rank 1 is lost.
TEST(Leaving, GoodbyeImpliesTheRelease) {
  ClusterOptions options = ranks(4);
  options.group.arity = 2;
  Cluster c(options);
  Closers closing(c);
  c.net().set_frame_hook([](size_t, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    return to != 1 || !wire::parse_frame(frame, h) || h.type != wire::FrameType::kReleased;
  });
  Runs runs = barrier_all(c);
  closing.close(2);
  ASSERT_TRUE(c.run([&] { return closing.all_left() && all_done(runs); }, kSecond));
  expect_good(runs, 4);
}

// Parameters: the member that leaves; whether a cut-over is pending (otherwise a check of multicast
// is running).
class LeaverAtThePath : public testing::TestWithParam<std::tuple<Member, bool>> {};

TEST_P(LeaverAtThePath, HoldsUpNothing) {
  const Member leaver = std::get<0>(GetParam());
  const bool line = std::get<1>(GetParam());
  ClusterOptions options = ranks(4);
  options.group.arity = 1;
  options.group.liveness_limit = 2 * kSecond;
  const auto owned = made_on_ring(options);
  Cluster& c = *owned;
  Closers closing(c);
  if (!line) silence(c);
  // The leaver's last reply of the exchange is dropped.
  const auto last = line ? wire::FrameType::kSwitchReady : wire::FrameType::kProbeStatus;
  bool held = false;
  c.net().set_frame_hook([&](size_t from, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    const bool answer = wire::parse_frame(frame, h) && h.type == last && h.sequence + line > 0;
    held = held || answer;
    return !(answer && from == 3);
  });
  for (uint64_t id = 1; !held; id++) {
    Runs runs;
    for (Member r = 0; r < 4; r++) runs.push_back(c.allgather(r, 1000, id));
    ASSERT_TRUE(c.run([&] { return all_done(runs) || held; }, kSecond));
    ASSERT_LT(c.now(), 60 * kSecond);
    c.run([&] { return held; }, 50 * kMilli);
  }
  // All have made the same calls. One rank leaves; the others stay without calling anything.
  ASSERT_TRUE(c.run([&] { return c.group(leaver).core().quiet(); }, kSecond));
  closing.close(leaver);
  ASSERT_TRUE(c.run([&] { return closing.all_left(); }, kSecond));
  c.pause(leaver, true);
  c.run_for(30 * kSecond);
  for (Member r = 0; r < 4; r++) {
    EXPECT_FALSE(c.group(r).core().failed()) << c.group(r).core().failure().to_string();
  }
  const auto next = c.allgather(leaver == 0 ? 1 : 0, 1000, 999);
  ASSERT_TRUE(c.run([&] { return next->done(); }, kSecond));
  EXPECT_TRUE(is_error(next->status, ErrorId::rank_left,
                       {{"rank", std::to_string(leaver)},
                        {"operations", std::to_string(c.group(leaver).core().next_sequence())}}));
}

INSTANTIATE_TEST_SUITE_P(Who, LeaverAtThePath,
                         testing::Combine(testing::Values<Member>(0, 1, 2, 3), testing::Bool()));

}  // namespace
}  // namespace mcast::test
