// Stations fold parts of reductions: the bits are the same as without stations, whatever happens to
// them.
#include "aggregation/plan/station_deal.h"
#include "aggregation/station_cluster.h"
#include "support/seeds.h"
#include "wire/aggregation.h"

namespace mcast::test {
namespace {

using wire::Kind;

wire::Descriptor sum(Kind kind, Element element, size_t bytes) {
  wire::Descriptor d{kind, static_cast<uint8_t>(element), kNoMember, bytes, ""};
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  return d;
}

constexpr size_t kVector = 3 << 19;  // more than the minimum for stations

Runs everybody(StationCluster& c, const wire::Descriptor& d, uint64_t id) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.call(r, d, id));
  return runs;
}

TEST(Stations, FoldAPartOfAnAllReduce) {
  for (const uint32_t stations : {1u, 2u, 7u}) {
    for (const Element element : {Element::kFloat32, Element::kInt32, Element::kBFloat16}) {
      SCOPED_TRACE(std::to_string(stations) + " stations, " + element_name(element));
      StationCluster c(with_stations(4));
      c.add_stations(std::vector<uint32_t>(stations, 65536));
      finish(c, everybody(c, sum(Kind::kAllreduce, element, kVector), 1));
      EXPECT_EQ(c.total(Counter::agg_operations), 4u);
      EXPECT_GT(c.total(Counter::agg_results), 0u);
      EXPECT_GT(c.total(Counter::agg_bytes_sent), 0u);
      EXPECT_EQ(c.total(Counter::agg_lost), 0u);
      EXPECT_EQ(c.total(Counter::agg_diverted), 0u);
    }
  }
}

TEST(Stations, FoldAPartOfAReduceScatter) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 32768});
  for (uint64_t id = 1; id < 5; id++) {
    finish(c, everybody(c, sum(Kind::kReduceScatter, Element::kFloat32, kVector / 4), id));
  }
  EXPECT_EQ(c.total(Counter::agg_operations), 16u);
  EXPECT_GT(c.total(Counter::agg_results), 0u);
}

TEST(Stations, SmallOnesAndOthersPassThemBy) {
  StationCluster c(with_stations(4));
  c.add_stations({65536});
  finish(c, everybody(c, sum(Kind::kAllreduce, Element::kFloat32, 1 << 18), 1));
  wire::Descriptor reduce = sum(Kind::kReduce, Element::kFloat32, kVector);
  reduce.root = 2;
  finish(c, everybody(c, reduce, 2));
  finish(c, everybody(c, {Kind::kAllgather, 6, kNoMember, kVector, ""}, 3));
  EXPECT_EQ(c.total(Counter::agg_operations), 0u);
  EXPECT_EQ(c.station(0).sent(), 0u);
}

// Returns true if this frame of a station to a rank has this type.
bool is_frame(ConstBytes frame, wire::FrameType type) {
  wire::FrameHeader h;
  return wire::parse_frame(frame, h) && h.type == type;
}

std::vector<std::byte> frame_of(const StationCluster& c, wire::FrameType type, Sequence sequence,
                                uint32_t argument, ConstBytes body) {
  std::vector<std::byte> frame(wire::kFrameHeader);
  const wire::FrameHeader header{type, 1, 99, 1, sequence, argument};
  const ConstBytes parts[] = {body};
  wire::write_frame_header(frame.data(), header, parts);
  frame.insert(frame.end(), body.begin(), body.end());
  (void)c;
  return frame;
}

// For a test that hangs: the ranks' counters, and why stations have ended.
std::string state_of(StationCluster& c) {
  std::string text;
  for (Member r = 0; r < c.size(); r++) {
    const Counters& n = c.group(r).counters();
    text += "\nrank " + std::to_string(r);
    for (const Counter which :
         {Counter::agg_operations, Counter::agg_results, Counter::agg_diverted, Counter::agg_lost,
          Counter::agg_declined, Counter::agg_stale, Counter::agg_malformed, Counter::stale,
          Counter::malformed, Counter::ops_completed}) {
      text += std::string(" ") + counter_name(which) + " " + std::to_string(n.get(which));
    }
  }
  for (size_t j = 0; j < c.stations(); j++) {
    text += "\nstation " + std::to_string(j) + ": " +
            c.station(j).station().closed().value_or("open") + ", frames sent " +
            std::to_string(c.station(j).sent());
  }
  return text;
}

// Results arrive: some have been placed, others have not.
bool under_way(const StationCluster& c) { return c.total(Counter::agg_results) > 2; }

// Ends a test of a failure: all ranks get the right bits, and the group lives.
void expect_survived(StationCluster& c, const Runs& runs) {
  finish(c, runs, 10 * kSecond);
  for (Member r = 0; r < c.size(); r++) EXPECT_FALSE(c.group(r).core().failed());
  if (testing::Test::HasFailure()) ADD_FAILURE() << state_of(c);
  EXPECT_GT(c.total(Counter::agg_diverted), 0u);
}

TEST(Stations, LateResultAfterDivertIsStale) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 65536});
  Runs runs = everybody(c, sum(Kind::kAllreduce, Element::kFloat32, kVector), 1);
  ASSERT_TRUE(c.run([&] { return under_way(c); }));
  // The station's frames are held up in both directions until all ranks have given it up.
  const size_t end = c.station(0).endpoint();
  c.net().isolate(end);
  ASSERT_TRUE(c.run([&] { return c.total(Counter::agg_lost) == 4; })) << "not missed";
  c.net().heal(end);
  expect_survived(c, runs);
  c.run_for(kSecond);
  EXPECT_GT(c.total(Counter::agg_stale), 0u);
  finish(c, everybody(c, sum(Kind::kAllreduce, Element::kFloat32, kVector), 2));
}

TEST(Stations, OperationDivertedBeforeTheLastPostCompletes) {
  StationCluster c(with_stations(4));
  c.add_stations({65536});
  const auto d = sum(Kind::kAllreduce, Element::kFloat32, kVector);
  Runs runs;
  for (Member r = 0; r < 3; r++) runs.push_back(c.call(r, d, 1));
  c.run_for(20 * kMilli);
  c.kill_station(0);
  c.run_for(20 * kMilli);
  EXPECT_GT(c.total(Counter::agg_diverted), 0u);
  runs.push_back(c.call(3, d, 1));
  expect_survived(c, runs);
}

TEST(Stations, StationGoneBetweenRostersIsLostOnAllRanks) {
  StationCluster c(with_stations(4));
  c.add_stations({65536});
  const auto d = sum(Kind::kAllreduce, Element::kInt32, kVector);
  finish(c, everybody(c, d, 1));
  c.make_stations({65536, 65536}, 2, 1);
  for (Member r = 0; r < 3; r++) c.install(r);
  Runs runs;
  for (Member r = 0; r < 3; r++) runs.push_back(c.call(r, d, 2));
  c.run_for(kMilli);
  c.kill_station(1);
  c.run_for(20 * kMilli);
  c.install(3);
  runs.push_back(c.call(3, d, 2));
  expect_survived(c, runs);
  // The station of the first set lives, and is not confused with the lost one.
  EXPECT_EQ(c.total(Counter::agg_lost), 4u);
}

TEST(Stations, OneRankSeesItDie) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 65536});
  Runs runs = everybody(c, sum(Kind::kReduceScatter, Element::kFloat32, kVector / 4), 1);
  ASSERT_TRUE(c.run([&] { return under_way(c); }));
  c.net().reset(2, c.station(0).endpoint());
  expect_survived(c, runs);
  EXPECT_EQ(c.total(Counter::agg_lost), 4u);
}

TEST(Stations, TwoOwnersDisagree) {
  StationCluster c(with_stations(4));
  c.add_stations({65536});
  // Owner 1 has results, owner 2 gets none: the station dies before the first.
  c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
    if (from != c.station(0).endpoint() || !is_frame(frame, wire::FrameType::kAggResult)) {
      return true;
    }
    if (to == 2 && c.total(Counter::agg_results) > 2) c.kill_station(0);
    return to != 2;
  });
  expect_survived(c, everybody(c, sum(Kind::kAllreduce, Element::kFloat32, kVector), 2));
}

TEST(Stations, DeclineCrossesResult) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 65536});
  const auto d = sum(Kind::kAllreduce, Element::kFloat32, kVector);
  Runs runs = everybody(c, d, 1);
  ASSERT_TRUE(c.run([&] { return under_way(c); }));
  wire::Writer body;
  wire::put_agg_decline(body, {static_cast<uint8_t>(Code::kResourceExhausted), "no memory"});
  for (Member r = 0; r < 4; r++) {
    c.net().inject_frame(c.station(1).endpoint(), r, Channel::kControl,
                         frame_of(c, wire::FrameType::kAggDecline, 0, d.hash(), body.bytes()));
  }
  expect_survived(c, runs);
  EXPECT_EQ(c.total(Counter::agg_declined), 4u);
  EXPECT_GT(c.total(Counter::agg_stale), 0u);
  EXPECT_EQ(c.total(Counter::agg_lost), 0u);
}

TEST(Stations, OperationsCompleteIfAStationDeclinesFromTheStart) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 65536});
  c.station(0).declines = true;
  const auto d = sum(Kind::kAllreduce, Element::kFloat32, kVector);
  for (uint64_t id = 1; id < 4; id++) {
    c.station(0).declines = id < 3;
    expect_survived(c, everybody(c, d, id));
  }
  EXPECT_EQ(c.total(Counter::agg_declined), 8u);
}

TEST(Stations, StoppedStationIsGivenUpAndStaysOutOfItsSet) {
  StationCluster c(with_stations(4));
  c.add_stations({65536, 65536});
  const auto d = sum(Kind::kReduceScatter, Element::kFloat64, kVector / 4);
  Runs runs = everybody(c, d, 1);
  ASSERT_TRUE(c.run([&] { return under_way(c); }));
  c.stop_station(1, true);
  const Nanos stopped = c.now();
  expect_survived(c, runs);
  EXPECT_GE(c.now() - stopped, kSecond);
  EXPECT_LE(c.now() - stopped, 3 * kSecond);
  c.run_for(5 * kSecond);
  c.stop_station(1, false);
  runs = everybody(c, d, 3);
  finish(c, runs);
  // The station stays out of this set permanently; in the next set another one takes its place.
  c.add_stations({65536, 65536}, 2, 2);
  finish(c, everybody(c, d, 4));
  EXPECT_EQ(c.total(Counter::agg_lost), 4u);
}

TEST(Stations, LossAtAnyFrameIsSurvived) {
  uint64_t frames = 0;
  for (const uint64_t last : seeds(60)) {
    StationCluster c(with_stations(4));
    c.add_stations({65536});
    if (frames > 0) c.station(0).last = last % (frames + 1);
    const Kind kind = last % 2 == 0 ? Kind::kAllreduce : Kind::kReduceScatter;
    const size_t bytes = kind == Kind::kAllreduce ? kVector : kVector / 4;
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(last));
    finish(c, everybody(c, sum(kind, Element::kFloat32, bytes), last));
    frames = std::max(frames, c.station(0).sent());
  }
  EXPECT_GT(frames, 20u);
}

TEST(Stations, InPlaceOperationsSurviveLostStations) {
  for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
    for (const bool ring : {false, true}) {
      SCOPED_TRACE(std::string(wire::kind_name(kind)) + (ring ? " by the ring" : ""));
      ClusterOptions o = with_stations(4);
      o.group.multicast.wanted = !ring;
      StationCluster c(o);
      c.add_stations({65536, 65536, 65536});
      const auto d = sum(kind, Element::kFloat32, kind == Kind::kAllreduce ? kVector : kVector / 4);
      Runs runs;
      for (uint64_t id = 2; id < 8; id += 2) {
        for (const auto& r : everybody(c, d, id)) runs.push_back(r);
      }
      ASSERT_TRUE(c.run([&] { return under_way(c); }));
      c.kill_station(0);
      c.run_for(2 * kMilli);
      c.net().reset(1, c.station(2).endpoint());
      expect_survived(c, runs);
    }
  }
}

TEST(Stations, SeveralRanksOnAHost) {
  for (const auto& [reduction, element] : {std::pair(Reduction::kPremulSum, Element::kFloat32),
                                           std::pair(Reduction::kAvg, Element::kBFloat16),
                                           std::pair(Reduction::kAvg, Element::kInt32)}) {
    if (!reducible(element, reduction)) continue;
    ClusterOptions o = with_stations(5);
    o.group.host_of = {0, 1, 2, 0, 1};
    StationCluster c(o);
    c.add_stations({65536, 65536});
    wire::Descriptor d = sum(Kind::kAllreduce, element, 2 * kVector);
    d.reduction = static_cast<uint8_t>(reduction);
    Runs runs = everybody(c, d, 2);
    ASSERT_TRUE(c.run([&] { return under_way(c); }));
    c.kill_station(0);
    expect_survived(c, runs);
  }
}

// A station accepts some operations at a time, and disconnects a rank that opens more.
TEST(Stations, AreOpenedAsFarAsTheyTake) {
  StationCluster c(with_stations(4));
  c.add_stations({65536});
  const auto d = sum(Kind::kAllreduce, Element::kInt32, kVector);
  for (uint64_t id = 2; id <= 2 * 66; id += 2) c.call(0, d, id);  // in place
  c.run_for(10 * kMilli);
  ASSERT_FALSE(c.station(0).station().closed());
  EXPECT_EQ(c.station(0).station().job()->operations(), 64u);
  EXPECT_EQ(c.total(Counter::agg_lost), 0u);
}

// Frames that station 0 can be made to send to rank 3, which expects a whole segment. `own` is the
// number of such a segment in the station's list. `anothers` is the number of a segment at the same
// place of another rank's shard, where rank 3 expects one from a station too.
struct Forged {
  uint32_t own = UINT32_MAX, anothers = UINT32_MAX;
  size_t segment = 0;
};

Forged forged_results(StationCluster& c, const wire::Descriptor& d) {
  const GroupCore& rank = c.group(3).core();
  const StationDeal dealt =
      deal_out(d, rank.params().agreed, rank.params().tag, c.fold(0).table().of(0)->stations);
  Forged out;
  out.segment = dealt.segment;
  for (uint32_t n = 0; n < dealt.deal->length(0); n++) {
    const Deal::Entry e = dealt.deal->entry(0, n);
    if (dealt.length(e.owner, e.segment) != out.segment ||
        dealt.deal->executor(3, e.segment) == Deal::kOwner) {
      continue;
    }
    (e.owner == 3 ? out.own : out.anothers) = n;
  }
  return out;
}

std::vector<std::byte> number_body(uint32_t value) {
  wire::Writer body;
  body.put<uint32_t>(value);
  return {body.bytes().begin(), body.bytes().end()};
}

std::vector<std::byte> result_body(uint32_t number, wire::ResultForm form, uint16_t contributors,
                                   size_t bytes) {
  wire::Writer body;
  wire::put_agg_result_head(body, number, form, contributors);
  std::vector<std::byte> out(body.bytes().begin(), body.bytes().end());
  out.resize(out.size() + bytes);
  return out;
}

struct WrongFrame {
  const char* reason;  // reason for which the station is disconnected
  wire::FrameType type;
  Sequence sequence;
  uint32_t argument;
  std::vector<std::byte> body;
};

std::vector<WrongFrame> wrong_frames(const Forged& forged, uint32_t hash) {
  using T = wire::FrameType;
  const auto result = [&](const char* reason, uint32_t number, wire::ResultForm form,
                          uint16_t contributors, size_t bytes) {
    return WrongFrame{reason, T::kAggResult, 0, hash,
                      result_body(number, form, contributors, bytes)};
  };
  constexpr auto kWhole = wire::ResultForm::kFinal, kPart = wire::ResultForm::kPartial;
  const size_t segment = forged.segment;
  return {
      {"a frame that stations do not send", T::kComplete, 0, 0, {}},
      {"an operation that this rank has not called", T::kReduceGrant, 7, hash, number_body(1)},
      {"a grant beyond its list", T::kReduceGrant, 0, hash, number_body(1u << 30)},
      {"a grant beyond its list", T::kReduceGrant, 0, hash, {}},
      {"an operation that differs from the one that this rank called", T::kReduceGrant, 0, hash + 1,
       number_body(1)},
      {"a result that does not parse", T::kAggResult, 0, hash, number_body(1)},
      result("a result beyond its list", 1u << 30, kWhole, 4, segment),
      result("a result of other contributions", forged.own, kWhole, 3, segment),
      result("a result of other contributions", forged.own, kPart, 4, segment),
      result("a result twice, or of another length", forged.own, kWhole, 4, 8),
      result("a result for another rank", forged.anothers, kWhole, 4, segment),
      {"a refusal that does not parse", T::kAggDecline, 0, hash, {}},
      {"a report that does not parse", T::kPong, 0, 0, number_body(1)},
  };
}

// A frame that no station may send ends that station, and affects nothing else.
TEST(Stations, ProtocolViolationEndsTheStation) {
  const auto d = sum(Kind::kAllreduce, Element::kFloat32, kVector);
  for (size_t i = 0; i < wrong_frames({}, 0).size(); i++) {
    StationCluster c(with_stations(4));
    c.add_stations({65536, 65536});
    const Forged forged = forged_results(c, d);
    ASSERT_TRUE(forged.own != UINT32_MAX && forged.anothers != UINT32_MAX);
    const WrongFrame wrong = wrong_frames(forged, d.hash())[i];
    SCOPED_TRACE(wrong.reason);
    Runs runs = everybody(c, d, 1);
    ASSERT_TRUE(c.run([&] { return c.total(Counter::agg_operations) == 4; })) << "not posted";
    c.net().inject_frame(c.station(0).endpoint(), 3, Channel::kReduce,
                         frame_of(c, wrong.type, wrong.sequence, wrong.argument, wrong.body));
    expect_survived(c, runs);
    EXPECT_EQ(c.fold(3).table().contact(4)->down.message(),
              std::string("it broke the protocol: ") + wrong.reason);
    EXPECT_EQ(c.total(Counter::agg_malformed), 1u);
    EXPECT_EQ(c.total(Counter::agg_lost), 4u);
  }
}

TEST(Stations, DamagedFrameEndsTheStation) {
  for (const bool parses : {true, false}) {
    StationCluster c(with_stations(4));
    c.add_stations({65536});
    const auto d = sum(Kind::kAllreduce, Element::kFloat32, kVector);
    Runs runs = everybody(c, d, 1);
    std::vector<std::byte> frame = frame_of(c, wire::FrameType::kPong, 0, 0, {});
    frame.resize(parses ? frame.size() : 3);
    if (parses) frame[0] ^= std::byte{1};
    c.net().inject_frame(c.station(0).endpoint(), 1, Channel::kControl, frame);
    expect_survived(c, runs);
    EXPECT_EQ(c.total(Counter::agg_lost), 4u);
    EXPECT_FALSE(c.lane(1).poisoned());
  }
}

}  // namespace
}  // namespace mcast::test
