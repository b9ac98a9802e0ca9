// Operations whose data travels by other groups (Post::delegated): they end on all ranks when all
// have all data, they agree on the call, and they fail like any other operation.
#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

struct Delegated {
  explicit Delegated(uint32_t ranks, size_t bytes = 1 << 20) {
    ClusterOptions o;
    o.ranks = ranks;
    cluster = std::make_unique<Cluster>(o);
    for (uint32_t r = 0; r < ranks; r++) {
      here.push_back(std::make_shared<std::atomic<bool>>(false));
    }
    cluster->adjust = [this](Member r, Post& post) {
      post.delegated = here[r];
      post.input = {};
      post.outputs.clear();
    };
    for (Member r = 0; r < ranks; r++) {
      runs.push_back(cluster->allgather(r, bytes, 1));
    }
  }
  void arrive(Member r) {
    here[r]->store(true);
    cluster->group(r).core().arrived(0, cluster->now());
  }
  std::vector<std::shared_ptr<std::atomic<bool>>> here;
  std::unique_ptr<Cluster> cluster;
  Runs runs;
};

TEST(Delegated, EndsForAllWhenAllHaveEverything) {
  Delegated e(4);
  for (Member r = 0; r < 4; r++) {
    e.cluster->run_for(50 * kMilli);
    for (const auto& run : e.runs) EXPECT_FALSE(run->done());
    e.arrive(r);
  }
  ASSERT_TRUE(e.cluster->run([&] { return all_done(e.runs); }, kSecond));
  for (const auto& run : e.runs) EXPECT_TRUE(run->status.ok()) << run->status.to_string();
  EXPECT_EQ(e.cluster->total(Counter::chunks_placed), 0u);
  EXPECT_LE(e.cluster->spins(), 3u);
}

TEST(Delegated, ArrivalBeforeThePostIsKept) {
  ClusterOptions o;
  o.ranks = 2;
  Cluster c(o);
  auto here = std::make_shared<std::atomic<bool>>(true);
  c.adjust = [&](Member, Post& post) {
    post.delegated = here;
    post.outputs.clear();
  };
  c.group(0).core().arrived(0, c.now());
  Runs runs = allgather_all(c, 1 << 20, 1);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, kSecond));
}

TEST(Delegated, ALostRankIsNamed) {
  Delegated e(3);
  e.arrive(0);
  e.cluster->kill(2);
  ASSERT_TRUE(e.cluster->run([&] { return e.runs[0]->done() && e.runs[1]->done(); }, kSecond));
  for (const Member r : {0, 1}) {
    EXPECT_TRUE(is_error(e.runs[r]->status, ErrorId::rank_lost, {{"rank", "2"}}));
  }
}

TEST(Delegated, CallsThatDifferAreAMismatch) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  auto here = std::make_shared<std::atomic<bool>>(false);
  c.adjust = [&](Member, Post& post) {
    post.delegated = here;
    post.input = {};
    post.outputs.clear();
  };
  Runs runs;
  for (Member r = 0; r < 3; r++) runs.push_back(c.allgather(r, r == 1 ? 1000 : 2000, 1));
  // No data arrives; the liveness pings reveal the mismatch.
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 20 * kSecond));
  for (const auto& run : runs) {
    EXPECT_EQ(run->status.code(), Code::kMismatch) << run->status.to_string();
  }
}

TEST(Delegated, APartThatFailedFailsItInTime) {
  for (const bool better : {false, true}) {
    Delegated e(3);
    const Nanos from = e.cluster->now();
    e.cluster->group(1).core().fail_later(Status(Code::kInternal, "a part of it broke"),
                                          from + 100 * kMilli);
    if (better) {
      e.cluster->run_for(50 * kMilli);
      e.cluster->kill(2);
    }
    ASSERT_TRUE(e.cluster->run([&] { return e.runs[0]->done() && e.runs[1]->done(); }, kSecond));
    for (const Member r : {0, 1}) {
      const Status& status = e.runs[r]->status;
      if (better) {
        EXPECT_TRUE(is_error(status, ErrorId::rank_lost, {{"rank", "2"}}));
      } else {
        EXPECT_TRUE(has(status, "a part of it broke")) << status.to_string();
      }
    }
    EXPECT_EQ(e.cluster->now() < from + 100 * kMilli, better);
    EXPECT_LE(e.cluster->spins(), 3u);
  }
}

TEST(Delegated, TheEarliestOfSeveralReasonsCounts) {
  Delegated e(3);
  GroupCore& core = e.cluster->group(1).core();
  const Nanos from = e.cluster->now();
  core.fail_later(Status(Code::kInternal, "a part of it broke"), from + 100 * kMilli);
  core.fail_later(Status(Code::kInternal, "the other lane failed"), from + 50 * kMilli);
  core.fail_later(Status(Code::kInternal, "another part broke"), from + 80 * kMilli);
  ASSERT_TRUE(e.cluster->run([&] { return e.runs[0]->done() && e.runs[1]->done(); }, kSecond));
  EXPECT_LT(e.cluster->now(), from + 80 * kMilli);
  for (const Member r : {0, 1}) {
    EXPECT_NE(e.runs[r]->status.message().find("the other lane failed"), std::string::npos)
        << e.runs[r]->status.to_string();
  }
}

TEST(Delegated, AReasonThatIsKnownCountsAtOnceWhereTheGroupIsLeft) {
  Delegated e(3);
  GroupCore& core = e.cluster->group(1).core();
  core.fail_early(e.cluster->now());  // there is no reason yet
  EXPECT_FALSE(core.failed());
  core.fail_later(Status(Code::kInternal, "a part of it broke"), e.cluster->now() + kSecond);
  core.fail_early(e.cluster->now());
  EXPECT_TRUE(core.failed());
  EXPECT_EQ(core.unfinished_text(e.cluster->now()), "");
  EXPECT_NE(core.failure().message().find("a part of it broke"), std::string::npos);
}

}  // namespace
}  // namespace mcast::test
