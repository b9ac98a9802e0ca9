// An experiment's report about each rank: bytes sent by class, queues, staged data, and heap by its
// place in the control tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "outcome.h"
#include "sim/world/rank_accounts.h"
#include "sim/world/report.h"
#include "support/world.h"

namespace mcast::sim {
namespace {

using testing::HasSubstr;

const RanksSent& sent_of(const OpResult& result, TrafficClass what) {
  return result.ranks_sent[static_cast<size_t>(what)];
}

TEST(RanksReport, RanksSendAsMuchAsTheirHosts) {
  for (const char* text :
       {"hosts=12 topology=leafspine:leaves=3,spines=2 size=4M loss=1e-3",
        "hosts=6 size=4M op=broadcast order=random loss=1e-3", "hosts=6 size=4M algorithm=ring",
        "hosts=6 ranks=2 size=4M planes=2 op=all_gather+reduce_scatter",
        "hosts=6 size=4M subgroups=2", "hosts=6 ranks=2 size=4M algorithm=direct loss=1e-3",
        "hosts=4 size=4M warmup=1", "hosts=4 size=4M background=load=0.2,size=64K"}) {
    const OpResult result = outcome_of(text);
    for (size_t c = 0; c < kTrafficClasses; c++) {
      const auto what = static_cast<TrafficClass>(c);
      const RanksSent& sent = result.ranks_sent[c];
      if (what == TrafficClass::kBackground) {
        EXPECT_EQ(sent.all.bytes, 0u) << text;
        continue;
      }
      if (what == TrafficClass::kAck && spec_of(text).background.load > 0) continue;
      EXPECT_EQ(sent.all.bytes, result.sent[c].bytes) << text << traffic_class_name(what);
      EXPECT_EQ(sent.all.packets, result.sent[c].packets) << text << traffic_class_name(what);
      EXPECT_GE(sent.most.bytes * spec_of(text).all_ranks(), sent.all.bytes);
    }
  }
}

TEST(RanksReport, FramesAreCountedByWhatTheyAreFor) {
  const OpResult result = outcome_of("hosts=6 size=8M loss=0.01");
  uint64_t frames = 0;
  for (const RanksSent& sent : result.ranks_sent) frames += sent.all.frames;
  EXPECT_EQ(frames, result.frames.all);
  EXPECT_GT(sent_of(result, TrafficClass::kRepair).all.frames, 0u);
  EXPECT_GE(sent_of(result, TrafficClass::kRepair).all.bytes,
            result.counters.at("repair_bytes_sent"));
  EXPECT_EQ(sent_of(result, TrafficClass::kData).all.frames, 0u);
  const OpResult direct = outcome_of("hosts=5 block=100K algorithm=direct");
  EXPECT_EQ(sent_of(direct, TrafficClass::kRing).all.frames, direct.frames.all);
  EXPECT_EQ(direct.frames.all, 20u);
}

TEST(RanksReport, TheBusiestIsNamed) {
  // Only the root sends a broadcast; the top of the control tree replies to all ranks.
  const OpResult cast = outcome_of("hosts=9 size=4M op=broadcast root=5");
  const RanksSent& data = sent_of(cast, TrafficClass::kData);
  EXPECT_EQ(data.rank, 5u);
  EXPECT_EQ(data.most.bytes, data.all.bytes);
  const RanksSent& control = sent_of(cast, TrafficClass::kControl);
  EXPECT_EQ(control.rank, 0u);
  EXPECT_GT(control.most.frames * 6, control.all.frames) << "of nine";
  EXPECT_LT(control.most.frames, control.all.frames);
}

TEST(RanksReport, PeaksAreOfTheRankThatHadThem) {
  // A small operation arrives ahead of a rank that calls it late; a rank that calls in time stages
  // nothing.
  const OpResult late = outcome_of("hosts=5 size=16K op=broadcast late=3:2ms");
  EXPECT_EQ(late.peaks.staging.rank, 3u);
  EXPECT_GE(late.peaks.staging.most, 16384u);
  EXPECT_LT(late.peaks.staging.most, 32768u);
  EXPECT_EQ(late.peaks.staging.all, late.peaks.staging.most);
  EXPECT_EQ(outcome_of("hosts=5 size=16K op=broadcast").peaks.staging.all, 0u);

  const OpResult clean = outcome_of("hosts=5 size=8M op=broadcast budget=1M");
  EXPECT_GT(clean.peaks.inbox.most, 4096u);
  EXPECT_LE(clean.peaks.inbox.most, 1024u * 1024 * 8 / 5);
  EXPECT_GT(clean.peaks.inbox.all, clean.peaks.inbox.most);
  // If threads sleep longer, more data waits for them.
  const OpResult sleepy = outcome_of("hosts=5 size=8M op=broadcast budget=1M wake=100us");
  EXPECT_GT(sleepy.peaks.inbox.most, clean.peaks.inbox.most);
}

// Earlier traffic does not count: a rank that called late, and all data that was sent for it.
TEST(RanksReport, AccountsBeginWhenTheyAreMade) {
  World world(test::world_of(4, "star"));
  const auto g = world.make_group();
  ASSERT_TRUE(world.run([&] { return world.made(g); }, 60 * kSecond));
  const auto cast = [&](uint64_t id, Nanos late) {
    Operation op;
    op.kind = wire::Kind::kBroadcast;
    op.id = id;
    op.bytes = 16384;
    test::Outcomes all;
    for (const Member m : {0, 1, 3}) all.push_back(world.post(g, m, op));
    if (late > 0) (void)world.run([] { return false; }, late);
    all.push_back(world.post(g, 2, op));
    EXPECT_TRUE(world.run([&] { return test::all_over(all); }, kSecond));
    (void)world.run([] { return false; }, 10 * kMilli);
  };
  cast(1, 2 * kMilli);
  RankAccounts accounts(world, g, nullptr);
  OpResult nothing;
  accounts.put(&nothing);
  EXPECT_EQ(nothing.frames.all, 0u);
  EXPECT_EQ(nothing.peaks.inbox.all, 0u);
  EXPECT_EQ(nothing.peaks.staging.all, 0u);
  for (const RanksSent& sent : nothing.ranks_sent) {
    EXPECT_EQ(sent.all.bytes + sent.all.packets + sent.all.frames, 0u);
  }
  cast(2, 0);
  OpResult something;
  accounts.put(&something);
  EXPECT_EQ(sent_of(something, TrafficClass::kData).all.packets, 16384 / 1408 + 1u);
  EXPECT_GT(sent_of(something, TrafficClass::kControl).all.frames, 0u);
  EXPECT_GT(something.peaks.inbox.most, 1408u);
  EXPECT_EQ(something.peaks.staging.all, 0u);
  cast(3, 2 * kMilli);
  OpResult late;
  accounts.put(&late);
  EXPECT_EQ(late.peaks.staging.rank, 2u);
  EXPECT_GT(late.peaks.staging.most, 16384u);
}

// Measures nothing: rank r has 1000 (r + 1) bytes, and at most 100 times as many after the reset.
class MadeUpMeter final : public HeapMeter {
 public:
  uint32_t drive(uint32_t rank) override { return std::exchange(driven_, rank); }
  uint64_t held(uint32_t rank) const override { return 1000 * (rank + 1); }
  uint64_t peak(uint32_t rank) const override { return (reset_ ? 100 : 1) * held(rank); }
  void reset_peaks() override { reset_ = true; }

 private:
  uint32_t driven_ = kNobody;
  bool reset_ = false;
};

TEST(RanksReport, StatesAreOfPlacesInTheControlTree) {
  MadeUpMeter meter;
  const States deep = outcome_of("hosts=12 size=64K arity=3", &meter).states;
  EXPECT_EQ(deep.idle, 6500u) << "the mean of 1000 to 12000";
  EXPECT_EQ(deep.peak, 1'200'000u);
  ASSERT_TRUE(deep.top && deep.inner && deep.leaf);
  EXPECT_EQ(deep.top->rank, 0u);
  EXPECT_EQ(deep.inner->rank, 1u);
  EXPECT_EQ(deep.leaf->rank, 11u);
  EXPECT_EQ(deep.inner->idle, 2000u);
  EXPECT_EQ(deep.inner->peak, 200'000u);
  const States flat = outcome_of("hosts=12 size=64K", &meter).states;
  EXPECT_TRUE(flat.top && !flat.inner && flat.leaf) << "a star has nobody between";
  EXPECT_FALSE(outcome_of("hosts=12 size=64K").states.top) << "nobody has counted";
  EXPECT_FALSE(outcome_of("hosts=12 size=64K algorithm=direct", &meter).states.top);
}

TEST(RanksReport, IsInTheJson) {
  MadeUpMeter meter;
  const std::string text = "hosts=4 size=16K op=broadcast late=3:2ms arity=2 loss=0.05 seed=3";
  const std::string json = report_json(spec_of(text), outcome_of(text, &meter), {});
  for (const char* key :
       {"\"ranks_sent\":{\"data\":{\"mean\":{\"bytes\":", "\"most\":{\"rank\":0,",
        "\"control\":{\"mean\":{\"bytes\":", "\"inbox\":{\"mean\":",
        "\"state\":{\"idle\":2500,\"peak\":400000,\"top\":{\"rank\":0,",
        "\"inner\":{\"rank\":1,\"idle\":2000,\"peak\":200000}", "\"leaf\":{\"rank\":3,"}) {
    EXPECT_THAT(json, HasSubstr(key));
  }
  EXPECT_THAT(json, testing::ContainsRegex("\"staging\":\\{\"mean\":[0-9.]+,\"most\":[0-9]+,"
                                           "\"rank\":3\\}"));
}

}  // namespace
}  // namespace mcast::sim
