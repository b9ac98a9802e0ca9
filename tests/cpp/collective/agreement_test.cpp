// Ranks must agree on the call and on its outcome: calls that differ, calls that are late or never
// made, ranks that leave. Each case has one outcome, the same on all ranks.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Descriptor;
using wire::Kind;

// ---- mismatches ----

struct Differ {
  const char* name;
  Descriptor usual, odd;
};

const Differ kDiffer[] = {
    {"kind", {Kind::kAllgather, 6, kNoMember, 4000, ""}, {Kind::kBroadcast, 6, 0, 4000, ""}},
    {"kind_barrier",
     {Kind::kAllgather, 6, kNoMember, 4000, ""},
     {Kind::kBarrier, 255, kNoMember, 0, ""}},
    {"kind_large",
     {Kind::kAllgather, 6, kNoMember, 400000, ""},
     {Kind::kBarrier, 255, kNoMember, 0, ""}},
    {"size",
     {Kind::kAllgather, 6, kNoMember, 4000, ""},
     {Kind::kAllgather, 6, kNoMember, 4004, ""}},
    {"size_large", {Kind::kBroadcast, 6, 0, 400000, ""}, {Kind::kBroadcast, 6, 0, 300000, ""}},
    {"size_zero", {Kind::kBroadcast, 6, 0, 0, ""}, {Kind::kBroadcast, 6, 0, 8, ""}},
    {"element",
     {Kind::kAllgather, 6, kNoMember, 4000, ""},
     {Kind::kAllgather, 7, kNoMember, 4000, ""}},
    {"root", {Kind::kBroadcast, 6, 0, 4000, ""}, {Kind::kBroadcast, 6, 1, 4000, ""}},
    {"root_large", {Kind::kBroadcast, 6, 0, 400000, ""}, {Kind::kBroadcast, 6, 1, 400000, ""}},
    {"element_of_zero_bytes",
     {Kind::kAllgather, 6, kNoMember, 0, ""},
     {Kind::kAllgather, 7, kNoMember, 0, ""}},
};

class Mismatch : public testing::TestWithParam<std::tuple<int, uint32_t, bool>> {};

TEST_P(Mismatch, IsRaisedOnAllRanksWithBothDescriptions) {
  const auto [which, n, ring] = GetParam();
  const Differ& d = kDiffer[which];
  for (Member odd = 0; odd < n; odd++) {
    Cluster c(ranks(n, ring));
    Runs runs;
    for (Member r = 0; r < n; r++) runs.push_back(c.call(r, r == odd ? d.odd : d.usual, 1));
    // An operation without data may complete before the mismatch is found; the next one does not.
    for (Member r = 0; r < n; r++) runs.push_back(c.barrier(r));
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, kLiveness + 2 * kSecond))
        << "odd rank " << odd;
    for (const auto& r : runs) {
      if (r->status.ok()) {
        EXPECT_EQ(r->id, 1u) << "the barrier completed though calls differed";
        continue;
      }
      EXPECT_TRUE(calls_differ(r->status, 0, d.usual.to_string(), odd, d.odd.to_string()));
    }
    for (Member r = 0; r < n; r++) EXPECT_TRUE(c.group(r).core().failed()) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Mismatch,
                         testing::Combine(testing::Range(0, 10), testing::Values(2u, 3u, 5u),
                                          testing::Bool()),
                         [](const auto& p) {
                           return std::string(kDiffer[std::get<0>(p.param)].name) + "_" +
                                  std::to_string(std::get<1>(p.param)) +
                                  (std::get<2>(p.param) ? "_ring" : "");
                         });

std::string broadcast_text(uint64_t bytes, Member root) {
  return Descriptor{Kind::kBroadcast, 6, root, bytes, ""}.to_string();
}

TEST(Agreement, EachTakesTheOtherForTheRoot) {
  // No data flows here, so only the pings can reveal the mismatch.
  Cluster c(ranks(2));
  Runs runs = {c.broadcast(0, 1, 100, 1), c.broadcast(1, 0, 100, 1)};
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, kLiveness + 2 * kSecond));
  for (const auto& r : runs) {
    EXPECT_TRUE(calls_differ(r->status, 0, broadcast_text(100, 1), 1, broadcast_text(100, 0)));
  }
}

TEST(Agreement, TwoChildrenDifferBeforeTheirParentHasCalled) {
  Cluster c(ranks(3));
  Runs runs = {c.broadcast(1, 1, 0, 1), c.broadcast(2, 2, 0, 1), c.barrier(1), c.barrier(2)};
  ASSERT_TRUE(c.run([&] { return runs[2]->done() && runs[3]->done(); }, kLiveness));
  for (size_t i = 2; i < 4; i++) {
    EXPECT_TRUE(calls_differ(runs[i]->status, 0, broadcast_text(0, 1), 2, broadcast_text(0, 2)));
  }
  c.run_for(100 * kMilli);
  const auto late = c.barrier(0);
  EXPECT_TRUE(late->done());
  EXPECT_EQ(late->status.code(), Code::kMismatch);
}

// ---- time limits ----

class LateRank : public testing::TestWithParam<std::tuple<Member, bool>> {};

TEST_P(LateRank, IsNamedOnAllRanksAtTheTimeLimit) {
  const auto [late, ring] = GetParam();
  for (const size_t bytes : {size_t{4000}, size_t{400000}}) {
    Cluster c(ranks(5, ring));
    Runs runs;
    for (Member r = 0; r < 5; r++) {
      if (r != late) runs.push_back(c.allgather(r, bytes, 1, 5 * kSecond));
    }
    const Nanos posted = c.now();
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 20 * kSecond));
    for (const auto& r : runs) {
      EXPECT_TRUE(is_error(r->status, ErrorId::ranks_late, {{"ranks", std::to_string(late)}}));
      EXPECT_TRUE(has(r->status, "all_gather (sequence 0) of group 'job'"))
          << r->status.to_string();
      EXPECT_GE(r->done_at, posted + 5 * kSecond);
      EXPECT_LE(r->done_at, posted + 7 * kSecond);
    }
    c.run_for(100 * kMilli);
    const auto after = c.allgather(late, bytes, 1);
    EXPECT_TRUE(after->done());
    EXPECT_EQ(after->status.code(), Code::kTimeout);
    EXPECT_LE(c.spins(), 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Who, LateRank,
                         testing::Combine(testing::Values<Member>(0, 1, 2, 4), testing::Bool()));

TEST(Agreement, SilentRankIsReportedBeforeALateOne) {
  // The late rank replies. The stopped rank is reported dead first, since its limit is shorter.
  Cluster c(ranks(4));
  Runs runs;
  for (Member r = 0; r < 2; r++) runs.push_back(c.barrier(r, 30 * kSecond));
  c.pause(3, true);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, kLiveness + 2 * kSecond));
  for (const auto& r : runs) {
    EXPECT_TRUE(is_error(r->status, ErrorId::rank_silent,
                         {{"rank", "3"}, {"limit", seconds_text(kLiveness)}}));
  }
}

// The last rank calls just when the time of the others is up: either all succeed or all fail, and a
// group whose operations succeeded does not fail afterwards.
TEST(Agreement, CallAtTheLimitSucceedsOnAllRanksOrFailsOnAll) {
  for (Nanos early = -kMilli; early <= kMilli; early += 50 * kMicro) {
    Cluster c(ranks(3));
    Runs runs;
    for (Member r = 0; r < 2; r++) runs.push_back(c.allgather(r, 50000, 1, kSecond));
    c.at(c.now() + kSecond - early, [&] { runs.push_back(c.allgather(2, 50000, 1, kSecond)); });
    ASSERT_TRUE(c.run([&] { return runs.size() == 3 && all_done(runs); }, 10 * kSecond));
    c.run_for(5 * kSecond);
    const bool good = runs[0]->status.ok();
    for (const auto& r : runs) EXPECT_EQ(r->status.ok(), good) << r->status.to_string();
    for (Member r = 0; r < 3; r++) EXPECT_EQ(c.group(r).core().failed(), !good);
    EXPECT_LE(c.spins(), 3u);
  }
}

TEST(Agreement, DeadlineFailsItsOpOnAllCallersAndNoEarlierOp) {
  Cluster c(ranks(3));
  Runs runs = barrier_all(c);
  runs.push_back(c.allgather(0, 1000, 2, 3 * kSecond));
  runs.push_back(c.allgather(1, 1000, 2));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (size_t i = 0; i < 3; i++) EXPECT_TRUE(runs[i]->status.ok());
  for (size_t i = 3; i < 5; i++) {
    EXPECT_TRUE(is_error(runs[i]->status, ErrorId::ranks_late, {{"ranks", "2"}}));
  }
}

// A second operation passes its limit while the top inquires about a first one, which then
// succeeds.
TEST(Agreement, LimitDuringAnInquiryNamesTheRanksThatAreLate) {
  Cluster c(ranks(3));
  const Nanos start = c.now();
  Runs first{c.allgather(0, 1000, 1), c.allgather(2, 1000, 1, 5 * kSecond)};
  const auto second = c.allgather(2, 1000, 2, 5 * kSecond + 200 * kMilli);
  // Rank 1 calls the first operation and stops, before it has sent anything, until both limits have
  // passed.
  c.at(start + 4 * kSecond + 500 * kMilli, [&] {
    first.push_back(c.allgather(1, 1000, 1));
    c.pause(1, true);
  });
  c.at(start + 5 * kSecond + 500 * kMilli, [&] { c.pause(1, false); });
  ASSERT_TRUE(c.run([&] { return second->done(); }, 20 * kSecond));
  expect_good(first, 3);
  EXPECT_TRUE(is_error(second->status, ErrorId::ranks_late, {{"ranks", "0, 1"}}));
  EXPECT_LE(c.spins(), 3u);
}

// There are more unreleased operations than may be started. The rest are deferred, and their time
// limits pass too.
TEST(Agreement, DeferredOperationKeepsItsTimeLimit) {
  constexpr uint32_t kMostUnreleased = 1u << 18, kDeferred = 10;
  for (const Member caller : {Member{0}, Member{2}}) {  // top of the tree; a leaf
    Cluster c(ranks(3));
    GroupCore& core = c.group(caller).core();
    uint32_t good = 0;
    std::vector<Status> failed;
    for (uint32_t i = 0; i < kMostUnreleased + kDeferred; i++) {
      Post post;
      post.sequence = core.next_sequence();
      post.descriptor = {wire::Kind::kBroadcast, 6, caller, 0, ""};
      post.posted = c.now();
      post.timeout = 10 * kSecond;
      post.done = [&](const Status& status) {
        status.ok() ? void(good++) : failed.push_back(status);
      };
      core.post(std::move(post), c.now());
      core.deliver();
    }
    const Nanos posted = c.now();
    c.run_for(5 * kSecond);  // the ranks have sent all frames for these operations
    const auto spins = c.spins();
    ASSERT_EQ(good, kMostUnreleased);
    ASSERT_TRUE(c.run([&] { return failed.size() == kDeferred; }, 60 * kSecond));
    EXPECT_GE(c.now(), posted + 10 * kSecond);
    EXPECT_LE(c.now(), posted + 13 * kSecond);
    const Fields who{{"ranks", caller == 0 ? "1, 2" : "0, 1"}};
    for (const Status& status : failed) {
      EXPECT_TRUE(is_error(status, ErrorId::ranks_late, who));
    }
    EXPECT_EQ(c.spins(), spins);
  }
}

// ---- leaving ----

class Leaver : public testing::TestWithParam<Member> {};

TEST_P(Leaver, FailsWhatItNeverCalled) {
  const Member leaver = GetParam();
  for (const bool before : {true, false}) {
    Cluster c(ranks(5));
    finish(c, allgather_all(c, 1000, 1));
    Runs runs;
    const auto post = [&] {
      for (Member r = 0; r < 5; r++) {
        if (r != leaver) runs.push_back(c.allgather(r, 100000, 2));
      }
    };
    if (!before) post();
    c.group(leaver).core().leave(c.now());
    c.run_for(100 * kMilli);
    if (before) post();
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, kSecond));
    for (const auto& r : runs) {
      const std::string who = std::to_string(leaver);
      EXPECT_TRUE(
          before
              ? is_error(r->status, ErrorId::rank_left, {{"rank", who}, {"operations", "1"}})
              : is_error(r->status, ErrorId::rank_left_before, {{"rank", who}, {"sequence", "1"}}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Who, Leaver, testing::Values<Member>(0, 1, 4));

TEST(Agreement, ABlockBeyondTheChunkIndicesIsRefusedEverywhere) {
  Cluster c(ranks(3));
  Runs runs;
  Descriptor d{Kind::kBroadcast, 6, 0, 0x7fffffffffffffffull, ""};
  for (Member r = 0; r < 3; r++) {
    Post post;
    post.sequence = 0;
    post.descriptor = d;
    auto run = std::make_shared<OpRun>();
    post.done = [run](const Status& status) {
      run->calls++;
      run->status = status;
    };
    c.group(r).core().post(std::move(post), c.now());
    c.group(r).core().deliver();
    runs.push_back(run);
  }
  for (const auto& r : runs) {
    EXPECT_EQ(r->calls, 1);
    EXPECT_EQ(r->status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(has(r->status, "too long")) << r->status.message();
  }
}

TEST(Agreement, RanksThatLeaveOneAfterTheOtherFailNoGroup) {
  Cluster c(ranks(4));
  Runs runs = allgather_all(c, 5000, 1);
  finish(c, runs);
  for (Member r = 0; r < 4; r++) c.group(r).core().close(c.now());
  for (Member r = 0; r < 4; r++) {
    ASSERT_TRUE(c.run([&] { return c.group(r).core().quiet(); }, kSecond));
    c.group(r).core().leave(c.now());
  }
  for (Member r = 0; r < 4; r++) EXPECT_FALSE(c.group(r).core().failed());
}

// A rank closes as soon as its operations are done. Its goodbye reaches its ring neighbour in one
// hop, the release in several. The neighbour must not treat the goodbye as a failure.
TEST(Agreement, EachClosesAsSoonAsItIsQuiet) {
  for (const bool ring : {false, true}) {
    for (const uint32_t n : {2u, 4u, 5u, 8u}) {
      ClusterOptions o = ranks(n, ring);
      o.net.stream_latency = 5 * kMilli;
      Cluster c(o);
      Runs runs = allgather_all(c, 200000, 1);
      for (auto& r : barrier_all(c)) runs.push_back(r);
      for (Member r = 0; r < n; r++) c.group(r).core().close(c.now());
      std::vector<bool> closed(n);
      uint32_t open = n;
      ASSERT_TRUE(c.run(
          [&] {
            for (Member r = 0; r < n; r++) {
              if (closed[r] || !c.group(r).core().quiet()) continue;
              closed[r] = true;
              open--;
              c.group(r).core().leave(c.now());
              c.lane(r).transport().stream().close_peers(c.now());
            }
            return open == 0;
          },
          10 * kSecond));
      expect_good(runs, n);
      for (Member r = 0; r < n; r++) {
        EXPECT_FALSE(c.group(r).core().failed()) << c.group(r).core().failure().to_string();
      }
    }
  }
}

TEST(Agreement, AnAbortThatOvertakesTheReleaseTakesNothingBack) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  Runs runs;
  for (Member r = 0; r < 3; r++) runs.push_back(c.barrier(r));
  runs.push_back(c.barrier(0));
  runs.push_back(c.barrier(2));
  // Rank 2 has sent all its frames and then stops. The release and the abort both wait for it, and
  // datagrams are read first.
  c.run_for(20 * kMicro);
  c.pause(2, true);
  ASSERT_TRUE(c.run([&] { return c.group(1).core().quiet(); }));
  ASSERT_FALSE(runs[2]->done());
  c.group(1).core().leave(c.now());
  ASSERT_TRUE(c.run([&] { return c.group(0).core().failed(); }));
  c.run_for(kMilli);
  c.pause(2, false);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  EXPECT_TRUE(runs[2]->status.ok()) << runs[2]->status.to_string();
  EXPECT_EQ(runs[4]->status.code(), Code::kClosed) << runs[4]->status.to_string();
}

TEST(Agreement, AGoodbyeWithoutTheReleaseIsAFailureInTheEnd) {
  Cluster c(ranks(4));
  Runs runs;
  for (const Member r : {0, 1, 3}) runs.push_back(c.allgather(r, 5000, 1));
  c.run_for(10 * kMilli);
  c.lane(2).transport().stream().close_peers(c.now());
  c.pause(2, true);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, kLiveness));
  for (const auto& r : runs) {
    EXPECT_TRUE(has(r->status, "rank 2 closed its connections")) << r->status.message();
  }
}

// One direction between two ranks is dead, and no error is reported.
TEST(Agreement, HalfOpenConnectionsEndInBoundedTime) {
  for (size_t from = 0; from < 4; from++) {
    for (size_t to = 0; to < 4; to++) {
      if (from == to) continue;
      for (const bool ring : {false, true}) {
        ClusterOptions o = ranks(4, ring);
        o.net.seed = from * 10 + to;
        Cluster c(o);
        c.net().faults().drop = 0.05;
        c.net().set_frame_hook(
            [=](size_t f, size_t t, Channel, ConstBytes) { return f != from || t != to; });
        c.net().set_datagram_hook([=](size_t f, size_t t, ConstBytes) {
          return f == from && t == to ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
        });
        Runs runs = allgather_all(c, 100000, 1);
        for (auto& r : barrier_all(c)) runs.push_back(r);
        ASSERT_TRUE(c.run([&] { return all_done(runs); }, kLiveness + 2 * kSecond))
            << "from " << from << " to " << to << (ring ? " ring" : "");
        for (const auto& r : runs) {
          if (r->status.ok()) {
            EXPECT_EQ(r->check(4), "");
          } else {
            EXPECT_EQ(r->status.code(), Code::kPeerLost) << r->status.to_string();
          }
        }
      }
    }
  }
}

TEST(Agreement, DeathWhileNothingIsInFlightFailsOnlyTheNextPost) {
  Cluster c(ranks(4));
  finish(c, allgather_all(c, 5000, 1));
  c.kill(2);
  c.run_for(10 * kSecond);
  for (const Member r : {0, 1, 3}) EXPECT_FALSE(c.group(r).core().failed());
  Runs runs;
  for (const Member r : {0, 1, 3}) runs.push_back(c.allgather(r, 5000, 2));
  for (const auto& r : runs) {
    EXPECT_TRUE(r->done());
    EXPECT_TRUE(is_error(r->status, ErrorId::rank_lost, {{"rank", "2"}}));
  }
}

// A small operation is over on every rank, but a rank dies before its confirmation arrives. Ranks
// that close the group serve the others a little longer, then leave.
TEST(Agreement, DeathBeforeTheConfirmationIsNotWaitedFor) {
  for (const Member dead : {0, 3}) {
    Cluster c(ranks(4));
    c.net().set_frame_hook([dead](size_t from, size_t, Channel, ConstBytes frame) {
      wire::FrameHeader h;
      return from != dead || !wire::parse_frame(frame, h) ||
             (h.type != wire::FrameType::kComplete && h.type != wire::FrameType::kReleased);
    });
    Runs runs = broadcast_all(c, 1, 3000, 1);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }));
    expect_good(runs, 4);
    c.kill(dead);
    c.run_for(100 * kMilli);
    for (const Member r : {1, 2}) EXPECT_FALSE(c.group(r).core().quiet()) << r;
    c.run_for(2 * kSecond);
    for (const Member r : {1, 2}) EXPECT_TRUE(c.group(r).core().quiet()) << r;
    for (const Member r : {1, 2}) {
      const auto later = c.barrier(r);
      EXPECT_TRUE(later->done());
      EXPECT_TRUE(is_error(later->status, ErrorId::rank_lost, {{"rank", std::to_string(dead)}}));
    }
  }
}

TEST(Agreement, AbortReachesRanksThatHavePostedNothing) {
  Cluster c(ranks(4));
  c.group(2).core().fail(Status(Code::kAborted, "told to stop"), 2, c.now());
  c.run_for(kSecond);
  for (Member r = 0; r < 4; r++) {
    const auto run = c.barrier(r);
    EXPECT_TRUE(run->done());
    EXPECT_EQ(run->status.code(), Code::kAborted);
    EXPECT_TRUE(has(run->status, "told to stop"));
  }
}

// The ring alone would deliver the abort too, in ten steps.
TEST(Agreement, AnAbortGoesDownTheTree) {
  ClusterOptions o = ranks(40);
  o.group.arity = 2;
  o.net.stream_latency = kMilli;
  Cluster c(o);
  for (size_t from = 0; from < 40; from++) c.net().block_multicast(from, SIZE_MAX);
  c.group(0).core().fail(Status(Code::kAborted, "told to stop"), 0, c.now());
  const auto failed = [&] {
    for (Member r = 0; r < 40; r++) {
      if (!c.group(r).core().failed()) return false;
    }
    return true;
  };
  EXPECT_TRUE(c.run(failed, 6 * kMilli));
}

}  // namespace
}  // namespace mcast::test
