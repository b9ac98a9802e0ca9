// Bodies and records of aggregation: they are read as they were written, truncated or extended ones
// are refused, and bytes that are accepted have only one encoding.
#include "wire/aggregation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "wire/admission.h"
#include "wire/frame.h"

namespace mcast::wire {
namespace {

using ::testing::HasSubstr;

// Reads `good` and refuses any prefix of it; with `longer`, also an additional byte.
template <typename Parse>
void only_whole(const Writer& good, Parse parse, bool longer = true) {
  EXPECT_TRUE(parse(good.bytes()));
  for (size_t cut = 0; cut < good.size(); cut++) {
    EXPECT_FALSE(parse(good.bytes().first(cut))) << cut;
  }
  Writer more = good;
  more.put<uint8_t>(0x80);
  EXPECT_EQ(parse(more.bytes()), !longer);
}

Descriptor some_descriptor() {
  Descriptor d;
  d.kind = Kind::kAllreduce;
  d.element = 3;
  d.reduction = 2;
  d.bytes = 1u << 20;
  return d;
}

TEST(AggregationBodies, OpenRoundTripsWithItsNameCutTo64Bytes) {
  Writer out;
  AggOpen open{7, some_descriptor()}, back;
  put_agg_open(out, open);
  only_whole(
      out, [&](ConstBytes b) { return parse_agg_open(b, back); }, false);
  EXPECT_EQ(back.roster, 7u);
  EXPECT_TRUE(parse_agg_open(out.bytes(), back));
  EXPECT_TRUE(back.descriptor.same(open.descriptor));
  EXPECT_EQ(back.descriptor.hash(), open.descriptor.hash());
  open.descriptor.name = std::string(80, 'x');
  Writer named;
  put_agg_open(named, open);
  ASSERT_TRUE(parse_agg_open(named.bytes(), back));
  EXPECT_EQ(back.descriptor.name, std::string(64, 'x'));
  named.put<uint8_t>('x');
  EXPECT_FALSE(parse_agg_open(named.bytes(), back));
}

TEST(AggregationBodies, OpenOfAnUnknownKindIsRefused) {
  Writer out;
  put_agg_open(out, {7, some_descriptor()});
  for (const unsigned kind : {0u, kKindMax + 1u, 255u}) {
    std::vector<std::byte> body(out.bytes().begin(), out.bytes().end());
    body[4] = static_cast<std::byte>(kind);
    AggOpen back;
    EXPECT_FALSE(parse_agg_open(body, back)) << kind;
  }
}

TEST(AggregationBodies, ResultRoundTripsAndAnUnknownFormIsRefused) {
  Writer out;
  put_agg_result_head(out, 77, ResultForm::kPartial, 5);
  EXPECT_EQ(out.size(), kAggResultHead);
  AggResult back;
  EXPECT_FALSE(parse_agg_result(out.bytes(), back)) << "nothing in it";
  out.put<uint8_t>(9);
  only_whole(
      out, [&](ConstBytes b) { return parse_agg_result(b, back); }, false);
  ASSERT_TRUE(parse_agg_result(out.bytes(), back));
  EXPECT_EQ(back.number, 77u);
  EXPECT_EQ(back.form, ResultForm::kPartial);
  EXPECT_EQ(back.contributors, 5);
  EXPECT_EQ(back.payload.size(), 1u);
  std::vector<std::byte> body(out.bytes().begin(), out.bytes().end());
  body[4] = std::byte{2};
  EXPECT_FALSE(parse_agg_result(body, back)) << "no such form";
}

TEST(AggregationBodies, DeclineAndGoneCutTheirTexts) {
  Writer decline, gone;
  put_agg_decline(decline, {8, std::string(2000, 'd')});
  put_agg_gone(gone, {3, 9, std::string(2000, 'g')});
  AggDecline d;
  AggGone g;
  ASSERT_TRUE(parse_agg_decline(decline.bytes(), d));
  ASSERT_TRUE(parse_agg_gone(gone.bytes(), g));
  EXPECT_EQ(d.code, 8);
  EXPECT_EQ(d.text, std::string(kMaxAggText, 'd'));
  EXPECT_EQ(g.roster, 3u);
  EXPECT_EQ(g.station, 9);
  EXPECT_EQ(g.text, std::string(kMaxAggText, 'g'));
  decline.put<uint8_t>('d');
  gone.put<uint8_t>('g');
  EXPECT_FALSE(parse_agg_decline(decline.bytes(), d));
  EXPECT_FALSE(parse_agg_gone(gone.bytes(), g));
  EXPECT_FALSE(parse_agg_decline({}, d));
  EXPECT_FALSE(parse_agg_gone(gone.bytes().first(5), g));
}

TEST(AggregationBodies, WaitRoundTripsAndATruncatedOneIsRefused) {
  Writer out;
  put_agg_wait(out, {12, 830, {0x20, 1}});
  AggWait back;
  ASSERT_TRUE(parse_agg_wait(out.bytes(), back));
  EXPECT_EQ(back.number, 12u);
  EXPECT_EQ(back.age_ms, 830u);
  EXPECT_EQ(back.missing, (std::vector<uint64_t>{0x20, 1}));
  EXPECT_FALSE(parse_agg_wait(out.bytes().first(out.size() - 1), back));
  EXPECT_FALSE(parse_agg_wait(out.bytes().first(7), back));
}

TEST(AggregationBodies, DivertWantsRangesThatAscend) {
  Divert back;
  const auto parse = [&](std::vector<ChunkRange> ranges) {
    Writer out;
    put_divert(out, 11, ranges);
    return parse_divert(out.bytes(), back);
  };
  EXPECT_TRUE(parse({{0, 4}, {5, 6}}));
  EXPECT_EQ(back.station, 11);
  EXPECT_EQ(back.segments, (std::vector<ChunkRange>{{0, 4}, {5, 6}}));
  EXPECT_FALSE(parse({}));
  EXPECT_FALSE(parse({{3, 3}}));
  EXPECT_FALSE(parse({{0, 4}, {4, 6}})) << "one range, written as two";
  EXPECT_FALSE(parse({{5, 6}, {0, 4}}));
}

TEST(AggregationBodies, PartialResultRoundTripsAndFitsOneGroupSize) {
  PartialResult partial{67, {uint64_t{1} << 63 | 1, 4}}, back;
  Writer out;
  put_partial(out, partial);
  for (size_t cut = 0; cut < out.size(); cut++) {
    EXPECT_EQ(parse_partial(out.bytes().first(cut), back), cut == 10) << cut;
  }
  ASSERT_TRUE(parse_partial(out.bytes(), back));
  EXPECT_EQ(back, partial);
  EXPECT_EQ(back.ranks(), (std::vector<Member>{0, 63, 66}));
  EXPECT_TRUE(back.is_excused(66));
  EXPECT_FALSE(back.is_excused(65));
  EXPECT_FALSE(back.is_excused(kNoMember));
  EXPECT_TRUE(back.fits(70));
  for (const uint32_t ranks : {64u, 66u, 69u, 71u, 129u}) EXPECT_FALSE(back.fits(ranks));
  EXPECT_FALSE((PartialResult{3, {8}}.fits(3))) << "a rank that there is not";
  EXPECT_FALSE((PartialResult{3, {0}}.fits(3))) << "nobody is excused";
  EXPECT_FALSE((PartialResult{0, {7}}.fits(3))) << "everybody is";
}

TEST(AggregationBodies, RosterRoundTripsAndAnInvalidOneIsRefused) {
  StationRoster roster{4, true, {{1, 2, 65536, 7117, "10.0.0.9", "a"}, {1, 3, 9, 7118, "h", ""}}};
  roster.stations[1].key.fill(std::byte{7});  // of a guarded group
  Writer out;
  put_roster(out, roster);
  StationRoster back;
  EXPECT_TRUE(parse_roster(out.bytes(), back));
  EXPECT_EQ(back.version, 4u);
  EXPECT_TRUE(back.resting);
  EXPECT_EQ(back.stations, roster.stations);
  std::vector<std::byte> strange(out.bytes().begin(), out.bytes().end());
  strange[4] = std::byte{2};
  EXPECT_FALSE(parse_roster(strange, back)) << "neither resting nor at work";
  size_t whole = 0;  // prefixes that are rosters of fewer stations
  for (size_t cut = 0; cut < out.size(); cut++) {
    whole += parse_roster(out.bytes().first(cut), back) ? 1 : 0;
  }
  EXPECT_EQ(whole, 2u);
  Writer none;
  put_roster(none, {1, false, {{1, 2, 3, 4, "", ""}}});
  EXPECT_FALSE(parse_roster(none.bytes(), back)) << "a station without an address";
  StationRoster many{1, false, std::vector<StationEntry>(kMostStations + 1, roster.stations[0])};
  Writer big;
  put_roster(big, many);
  EXPECT_FALSE(parse_roster(big.bytes(), back));
}

TEST(AggregationBodies, RosterReachRoundTripsAndExtraBitsAreRefused) {
  RosterReach reach{5, std::vector<bool>(11, true), std::vector<bool>(11, false)}, back;
  reach.heard[10] = true;
  Writer out;
  put_roster_reach(out, reach);
  only_whole(out, [&](ConstBytes b) { return parse_roster_reach(b, back); });
  ASSERT_TRUE(parse_roster_reach(out.bytes(), back));
  EXPECT_EQ(back.version, 5u);
  EXPECT_EQ(back.connected, reach.connected);
  EXPECT_EQ(back.heard, reach.heard);
  std::vector<std::byte> body(out.bytes().begin(), out.bytes().end());
  body.back() |= std::byte{0x80};
  EXPECT_FALSE(parse_roster_reach(body, back)) << "a bit of no station";
  Writer version;
  version.put<uint32_t>(6);
  uint32_t v = 0;
  only_whole(version, [&](ConstBytes b) { return parse_roster_version(b, v); });
}

TEST(AggregationBodies, AcceptedNoiseHasOneEncoding) {
  Rng rng(41);
  size_t accepted = 0;
  const auto same = [&](const Writer& out, ConstBytes body, size_t payload = 0) {
    accepted++;
    ASSERT_TRUE(std::equal(out.bytes().begin(), out.bytes().end(), body.begin(),
                           body.end() - static_cast<std::ptrdiff_t>(payload)));
  };
  for (int i = 0; i < 20000; i++) {
    std::vector<std::byte> body(rng.below(60));
    for (std::byte& b : body) b = static_cast<std::byte>(rng.chance(0.5) ? 0 : rng.below(8));
    Writer a, b, c, d, e, f;
    AggOpen open;
    if (parse_agg_open(body, open)) put_agg_open(a, open), same(a, body);
    AggResult result;
    if (parse_agg_result(body, result)) {
      put_agg_result_head(b, result.number, result.form, result.contributors);
      same(b, body, result.payload.size());
    }
    Divert divert;
    if (parse_divert(body, divert)) put_divert(c, divert.station, divert.segments), same(c, body);
    StationRoster roster;
    if (parse_roster(body, roster)) put_roster(d, roster), same(d, body);
    RosterReach reach;
    if (parse_roster_reach(body, reach)) put_roster_reach(e, reach), same(e, body);
    AggWait wait;
    if (parse_agg_wait(body, wait)) put_agg_wait(f, wait), same(f, body);
  }
  EXPECT_GT(accepted, 1000u);
}

Ask some_ask() {
  Ask ask;
  ask.version = "0.1.0";
  ask.protocol = 6;
  ask.transport = "udp";
  ask.tag = UINT64_MAX;
  ask.name = "default_pg";
  ask.uids = {5, UINT64_MAX, 7};
  ask.host_of = {0, 0, 1};
  ask.chunk = 1408;
  ask.incast = 2u << 20;
  ask.fold = "turn";
  ask.aggregate = "careful";
  ask.roster = 1;
  ask.memory = 4500000;
  ask.link_rate = 300'000'000;
  ask.rack = "rackA";
  return ask;
}

Accept some_accept() {
  Accept accept;
  accept.process = 99;
  accept.quota = 128u << 20;
  accept.mtu = 9000;
  accept.stations = {{1, "10.0.0.9", 7117, 65536}, {2, "10.0.0.9", 7118, 32768}};
  return accept;
}

Ask guarded_ask() {
  Ask ask = some_ask();
  ask.security = "sealed";
  for (size_t r = 0; r < ask.uids.size(); r++) {
    ask.keys.emplace_back().fill(static_cast<std::byte>(r + 1));
  }
  return ask;
}

Accept guarded_accept() {
  Accept accept = some_accept();
  for (Accept::Station& station : accept.stations) station.key.fill(std::byte{0xa5});
  return accept;
}

TEST(AdmissionRecords, RacksOfAllRanksOrOfNone) {
  for (const std::vector<uint32_t>& rack_of :
       std::vector<std::vector<uint32_t>>{{1, 1}, {1, 2, 3}, {0, 0, 0, 0}}) {
    Ask ask = some_ask();
    ask.racks = {"a", "b"};
    ask.rack_of = rack_of;
    Admission back;
    EXPECT_FALSE(decode_admission(encode(Admission(ask)), back).ok());
  }
}

TEST(AdmissionRecords, RoundTrip) {
  Ask in_racks = some_ask();
  in_racks.racks = {"rackA", "b"};
  in_racks.rack_of = {1, 0, 2};
  for (const Admission& record :
       {Admission(some_ask()), Admission(in_racks), Admission(guarded_ask()),
        Admission(some_accept()), Admission(guarded_accept()),
        Admission(Challenge{"sealed", "0123"}),
        Admission(Refuse{"quota", "quota 512M, 498M in use"}), Admission(Bye()),
        Admission(Draining())}) {
    Admission back;
    const Status status = decode_admission(encode(record), back);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(back == record);
  }
  Admission folded;
  ASSERT_TRUE(decode_admission(encode(Refuse{"a", "two\nlines"}), folded).ok());
  EXPECT_EQ(std::get<Refuse>(folded).text, "two lines");
}

TEST(AdmissionRecords, EveryFieldIsNeededAndNamed) {
  for (const Admission& record :
       {Admission(some_ask()), Admission(some_accept()), Admission(Refuse{"code", "text"})}) {
    const std::string text = encode(record);
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at) + 1;
      const std::string key = text.substr(at, text.find('=', at) - at);
      Admission back;
      const Status status = decode_admission(text.substr(0, at) + text.substr(end), back);
      // Without its last line, a list of stations is a valid shorter list.
      if (key != "station1") {
        ASSERT_FALSE(status.ok()) << key;
        EXPECT_THAT(status.message(), HasSubstr("\"" + key + "\""));
      }
      at = end;
    }
  }
}

TEST(AdmissionRecords, FieldsOutOfRange) {
  const auto refused = [](const Admission& record, const std::string& line) {
    Admission back;
    const Status status = decode_admission(encode(record) + line + "\n", back);
    return status.message().find(line.substr(0, line.find('='))) != std::string::npos;
  };
  EXPECT_TRUE(refused(some_ask(), "protocol=-1"));
  EXPECT_TRUE(refused(some_ask(), "uids="));
  EXPECT_TRUE(refused(some_ask(), "uids=1  2"));
  EXPECT_TRUE(refused(some_ask(), "uids=18446744073709551616 2 3"));
  EXPECT_TRUE(refused(some_ask(), "host_of=0 1"));
  EXPECT_TRUE(refused(some_ask(), "host_of=0 1 3"));
  EXPECT_TRUE(refused(some_accept(), "station1=2 7118 32768"));
  EXPECT_TRUE(refused(some_accept(), "station1=2 70000 32768 h"));
  EXPECT_TRUE(refused(some_accept(), "station1=2 7118 32768 h h"));
  EXPECT_TRUE(refused(some_accept(), "record=hello"));
  EXPECT_TRUE(refused(guarded_ask(), "keys=" + std::string(64, '1')));
  EXPECT_TRUE(refused(guarded_ask(), "keys=" + std::string(192, '0'))) << "none is none";
  EXPECT_TRUE(refused(guarded_ask(), "keys=" + std::string(192, 'x')));
  EXPECT_TRUE(refused(guarded_accept(), "key1=" + std::string(63, '1')));
  Ask large = some_ask();
  large.name = std::string(kMaxAdmission, 'x');
  Admission back;
  EXPECT_THAT(decode_admission(encode(large), back).message(), HasSubstr("at most 65536"));
}

TEST(AdmissionRecords, HeadingOfAnotherVersionIsRead) {
  const Ask heading = ask_heading("record=ask\nversion=9.0\nprotocol=12\nnew=1\n");
  EXPECT_EQ(heading.version, "9.0");
  EXPECT_EQ(heading.protocol, 12u);
  EXPECT_EQ(ask_heading(encode(some_accept())).protocol, 0u);
  EXPECT_EQ(ask_heading("noise").version, "");
}

}  // namespace
}  // namespace mcast::wire
