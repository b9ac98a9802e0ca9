// An aggregator over real loopback sockets: which connections are accepted, the cost of strangers,
// jobs that run side by side, and the release of their resources when they end.
#include "aggregation/server/aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "aggregation/server/deal_work.h"
#include "aggregation/service_world.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "support/core_threads.h"
#include "support/secret_text.h"
#include "support/temporary_folder.h"
#include "support/until.h"

namespace mcast::service {
namespace {

using test::Asker;
using test::core_threads;
using test::eventually;
using test::Ranks;
using test::some_ask;
using test::until;
using ::testing::HasSubstr;

class AggregatorTest : public ::testing::Test {
 protected:
  void start(const Options& options) {
    auto made = Aggregator::start(options, test::simple_deal());
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    aggregator_ = std::move(made).value();
  }
  Asker asker() { return Asker(aggregator_->port()); }
  static wire::Refuse refusal(Asker& asker) {
    const auto record = asker.receive();
    if (!record) return {"none", "no answer"};
    const auto* const no = std::get_if<wire::Refuse>(&*record);
    return no != nullptr ? *no : wire::Refuse{"none", "another record"};
  }
  // Returns nothing if the group was not accepted.
  static std::optional<wire::Accept> acceptance(Asker& asker) {
    const auto record = asker.receive();
    if (!record || !std::holds_alternative<wire::Accept>(*record)) return std::nullopt;
    return std::get<wire::Accept>(*record);
  }
  static std::optional<wire::Accept> acceptance(Asker& asker, const wire::Ask& ask) {
    return asker.send(ask) ? acceptance(asker) : std::nullopt;
  }
  // The group is served, and its ranks know the first station. Returns nothing if it was not
  // accepted.
  static std::optional<wire::Accept> serve(Asker& asker, Ranks& ranks) {
    const auto accept = acceptance(asker, ranks.ask());
    if (accept) ranks.meet(accept->stations[0]);
    return accept;
  }
  bool served(size_t jobs) {
    return eventually([&] { return aggregator_->report().jobs.size() == jobs; });
  }
  std::string last_end() {
    const Report report = aggregator_->report();
    return report.ended.empty() ? "none" : report.ended.back().why;
  }
  uint64_t refused(AskRefusal why) {
    return aggregator_->report().refused[static_cast<size_t>(why)];
  }

  std::unique_ptr<Aggregator> aggregator_;
};

TEST_F(AggregatorTest, AnAskIsAcceptedWithItsStations) {
  Options options = test::loopback_options();
  options.lanes = 3;
  start(options);
  Asker a = asker();
  const auto accept = acceptance(a, some_ask(4));
  ASSERT_TRUE(accept);
  EXPECT_NE(accept->process, 0u);
  EXPECT_GT(accept->mtu, 1000u);
  EXPECT_GT(accept->quota, 0u);
  ASSERT_EQ(accept->stations.size(), 3u);
  std::set<uint64_t> uids;
  for (const auto& station : accept->stations) {
    EXPECT_EQ(station.host, "127.0.0.1");
    EXPECT_NE(station.port, 0);
    EXPECT_EQ(station.capacity, 65536u / 3);
    uids.insert(station.uid);
  }
  EXPECT_EQ(uids.size(), 3u);
  const Report report = aggregator_->report();
  ASSERT_EQ(report.jobs.size(), 1u);
  EXPECT_EQ(report.jobs[0].quota, accept->quota);
  EXPECT_EQ(report.quota_used, accept->quota);
  EXPECT_EQ(report.jobs[0].stations.size(), 3u);
}

TEST_F(AggregatorTest, AsksAreRefusedByNameAndTheConnectionEnds) {
  Options options = test::loopback_options();
  options.jobs = 1;
  options.quota_per_job = 8 << 20;
  start(options);
  const auto refuses = [&](const wire::Ask& ask) {
    Asker a = asker();
    EXPECT_TRUE(a.send(ask));
    const wire::Refuse no = refusal(a);
    EXPECT_TRUE(a.closed());
    return no.code + ": " + no.text;
  };
  wire::Ask other = some_ask(3);
  other.version = "7.0.0";
  EXPECT_THAT(refuses(other), HasSubstr("version: the aggregator has torch-mcast"));
  wire::Ask large = some_ask(3);
  large.memory = 9 << 20;
  EXPECT_THAT(refuses(large), HasSubstr("quota: quota per job 8M"));
  wire::Ask verbs = some_ask(3);
  verbs.transport = "pigeons";
  EXPECT_THAT(refuses(verbs), HasSubstr("transport: the group uses the transport pigeons"));
  Asker served = asker();
  ASSERT_TRUE(acceptance(served, some_ask(3)));
  EXPECT_THAT(refuses(some_ask(3)), HasSubstr("jobs: it serves 1 jobs already, of at most 1"));
  for (const AskRefusal why :
       {AskRefusal::version, AskRefusal::quota, AskRefusal::transport, AskRefusal::jobs}) {
    EXPECT_EQ(refused(why), 1u) << ask_refusal_name(why);
  }
  EXPECT_TRUE(served.send(wire::Bye{}));
  EXPECT_TRUE(this->served(0));
  Asker next = asker();
  EXPECT_TRUE(acceptance(next, some_ask(3))) << "the place is free again";
}

TEST_F(AggregatorTest, HostsThatAreNotAllowedAreRefused) {
  Options options = test::loopback_options();
  options.allow = *parse_networks("10.0.0.0/8", 1);
  start(options);
  Asker a = asker();
  ASSERT_TRUE(a.send(some_ask(3)));
  const wire::Refuse no = refusal(a);
  EXPECT_EQ(no.code, "network");
  EXPECT_THAT(no.text, HasSubstr("127.0.0.1"));
}

TEST_F(AggregatorTest, GarbageIsTurnedAwayAndTheNextAskIsServed) {
  start(test::loopback_options());
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                   std::string(100, '\0'), std::string(100, '\xff')}) {
    Asker a = asker();
    ASSERT_TRUE(a.send_raw(bytes));
    EXPECT_TRUE(a.closed());
  }
  {
    Asker a = asker();
    ASSERT_TRUE(a.send_raw(wire::framed("record=nonsense\n")));
    EXPECT_EQ(refusal(a).code, "malformed");
  }
  EXPECT_EQ(refused(AskRefusal::malformed), 4u);
  Asker a = asker();
  EXPECT_TRUE(acceptance(a, some_ask(3)));
}

TEST_F(AggregatorTest, AnAskInPiecesIsRead) {
  start(test::loopback_options());
  Asker a = asker();
  const std::string bytes = wire::framed(encode(some_ask(3)));
  for (size_t at = 0; at < bytes.size(); at += 50) {
    ASSERT_TRUE(a.send_raw(std::string_view(bytes).substr(at, 50)));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(acceptance(a));
}

TEST_F(AggregatorTest, HalfAnAskIsWaitedForAFewSecondsOnly) {
  start(test::loopback_options());
  Asker half = asker();
  const Nanos before = monotonic_now();
  ASSERT_TRUE(half.send_raw(wire::framed(encode(some_ask(3))).substr(0, 100)));
  EXPECT_TRUE(half.closed());
  EXPECT_GE(monotonic_now() - before, AdmissionListener::kAskPatience - 100 * kMilli);
  EXPECT_EQ(refused(AskRefusal::malformed), 1u);
}

// Connections that send half a record or nothing are limited in number and time, and do not keep
// others out.
TEST_F(AggregatorTest, SilentConnectionsGiveWay) {
  start(test::loopback_options());
  const uint64_t before = descriptor_use().open;
  std::vector<Asker> silent;
  for (size_t i = 0; i < 2 * AdmissionListener::kMostAsking; i++) {
    silent.emplace_back(aggregator_->port());
    if (i % 2 == 0) {
      ASSERT_TRUE(silent.back().send_raw(wire::framed(encode(some_ask(3))).substr(0, 20)));
    }
  }
  const uint64_t ours = silent.size();
  EXPECT_LE(descriptor_use().open, before + ours + AdmissionListener::kMostAsking + 8);
  Asker a = asker();
  EXPECT_TRUE(acceptance(a, some_ask(3)));
  EXPECT_TRUE(silent.front().closed());
}

TEST_F(AggregatorTest, AJobOfThreeGetsExactResults) {
  start(test::loopback_options());
  Ranks ranks(3);
  Asker a = asker();
  const auto accept = serve(a, ranks);
  ASSERT_TRUE(accept);
  for (Member m = 0; m < 3; m++) EXPECT_TRUE(ranks.ping(m));
  for (uint32_t op = 0; op < 20; op++) {
    ASSERT_TRUE(ranks.reduce_scatter(op, 1 + op * 3, op)) << "operation " << op;
  }
  StationReport station;  // reports may be slightly out of date
  EXPECT_TRUE(eventually([&] {
    station = aggregator_->report().jobs[0].stations[0];
    return station.operations == 20 && station.open_operations == 0;
  }));
  EXPECT_EQ(station.connected, 3u);
  EXPECT_EQ(station.malformed, 0u);
  EXPECT_GT(station.cpu, 0);
  uint64_t segments = 0;
  for (uint32_t op = 0; op < 20; op++) segments += 3 * (1 + op * 3);
  EXPECT_EQ(station.folded_bytes, 3 * segments * test::kSegment);
  EXPECT_EQ(station.staged_bytes, 0u) << "integers are folded as they come";
  EXPECT_THAT(json_text(aggregator_->report()), HasSubstr("\"staged_share\":0.000"));
  EXPECT_GE(station.bytes_out, segments * test::kSegment);
  EXPECT_LE(station.memory, accept->quota);
}

TEST_F(AggregatorTest, NothingOfAGuardedAskCountsBeforeItsProof) {
  const mcast::test::TemporaryFolder folder;
  const std::string file = folder.path() + "/secret";
  std::ofstream(file) << mcast::test::secret_text('a') << "\n";
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  Options options = test::loopback_options();
  options.config.security = "sealed";
  options.config.secret_file = file;
  start(options);
  const wire::Ask ours = some_ask(3);
  const std::string heading =
      "record=ask\nversion=" + ours.version + "\nprotocol=" + std::to_string(ours.protocol) + "\n";
  const std::string rest = "uids=1 1 0\nnonsense", proof = "\nmac=" + std::string(64, '0');
  const std::pair<std::string, const char*> asks[] = {
      {heading + "security=sealed\n" + rest + proof, "the group's proof is wrong"},
      {heading + "security=sealed\n" + rest, "the group's proof is wrong"},
      {heading + rest + proof, "the group with security=off"},
      {rest + proof, "not a request"},
  };
  for (const auto& [record, why] : asks) {
    Asker a = asker();
    const auto challenge = a.receive();
    ASSERT_TRUE(challenge && std::holds_alternative<wire::Challenge>(*challenge));
    ASSERT_TRUE(a.send_raw(wire::framed(record)));
    EXPECT_THAT(refusal(a).text, HasSubstr(why)) << record;
  }
  EXPECT_EQ(refused(AskRefusal::security), 3u);
  EXPECT_EQ(refused(AskRefusal::malformed), 1u);
}

TEST_F(AggregatorTest, AStationCountsWhomItRefusesByCause) {
  start(test::loopback_options());
  Ranks ranks(3);
  Asker a = asker();
  const auto accept = serve(a, ranks);
  ASSERT_TRUE(accept);
  Asker stranger(accept->stations.front().port);
  ASSERT_TRUE(stranger.send_raw(std::string(100, 'x')));
  EXPECT_TRUE(stranger.closed());
  const auto cause = static_cast<size_t>(Cause::hello_refused);
  EXPECT_TRUE(
      eventually([&] { return aggregator_->report().jobs[0].stations[0].refused[cause] == 1; }));
  EXPECT_THAT(json_text(aggregator_->report()), HasSubstr("\"refused\":{\"hello_refused\":1}"));
  for (Member m = 0; m < 3; m++) EXPECT_TRUE(ranks.ping(m));
  ASSERT_TRUE(ranks.reduce_scatter(0, 4, 0));
}

// No memory is allocated for a size that a rank declares: with 2 bytes for each segment, this one
// would need a petabyte.
TEST_F(AggregatorTest, AnOperationBeyondAllBoundsIsDeclinedAndTheJobGoesOn) {
  auto made = Aggregator::start(test::loopback_options(), deal_work());
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  aggregator_ = std::move(made).value();
  Ranks ranks(3);
  Asker a = asker();
  ASSERT_TRUE(serve(a, ranks));
  wire::AggOpen open;
  open.roster = 1;
  wire::Descriptor& d = open.descriptor;
  d.kind = wire::Kind::kReduceScatter;
  d.element = static_cast<uint8_t>(Element::kInt32);
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  Sequence sequence = 0;
  for (const uint64_t bytes : {uint64_t{1} << 40, uint64_t{1} << 60, UINT64_MAX - 3}) {
    d.bytes = bytes;
    wire::Writer body;
    wire::put_agg_open(body, open);
    ranks.send(0, Channel::kReduce,
               {wire::FrameType::kAggOpen, 1, 0, ranks.tag(), sequence++, d.hash()}, body.bytes());
  }
  for (Member m = 0; m < 3; m++) EXPECT_TRUE(ranks.ping(m));
  EXPECT_TRUE(
      eventually([&] { return aggregator_->report().jobs[0].stations[0].declined == sequence; }));
  EXPECT_TRUE(served(1));
}

// Two groups whose tags are equal: a frame belongs to the group of its stream.
TEST_F(AggregatorTest, JobsWithEqualTagsDoNotMeet) {
  start(test::loopback_options());
  Ranks one(3, 5), two(2, 5);
  Asker a = asker(), b = asker();
  ASSERT_TRUE(a.send(one.ask()));
  ASSERT_TRUE(b.send(two.ask()));
  const auto first = acceptance(a), second = acceptance(b);
  ASSERT_TRUE(first && second);
  one.meet(first->stations[0]);
  two.meet(second->stations[0]);
  for (uint32_t op = 0; op < 5; op++) {
    ASSERT_TRUE(one.reduce_scatter(op, 4, op));
    ASSERT_TRUE(two.reduce_scatter(op, 6, 100 + op));
  }
  // One of them violates the protocol; the other is not affected.
  one.send(0, Channel::kReduce, {wire::FrameType::kAbort, 1, 0, 5, 0, 0}, {});
  EXPECT_TRUE(one.lost(1));
  EXPECT_TRUE(served(1));
  EXPECT_THAT(last_end(), HasSubstr("rank 0 sent a frame that stations do not accept"));
  ASSERT_TRUE(two.reduce_scatter(5, 6, 105));
}

TEST_F(AggregatorTest, AnEndpointThatIsNotInTheAskDoesNotGetIn) {
  start(test::loopback_options());
  Ranks ranks(2), strangers(2);
  Asker a = asker();
  const auto accept = acceptance(a, ranks.ask());
  ASSERT_TRUE(accept);
  strangers.meet(accept->stations[0]);
  ranks.meet(accept->stations[0]);
  ASSERT_TRUE(ranks.reduce_scatter(0, 3, 1));
  EXPECT_TRUE(eventually([&] { return aggregator_->report().jobs[0].stations[0].connected == 2; }));
  EXPECT_TRUE(strangers.lost(0));
}

TEST_F(AggregatorTest, ABadRosterEndsTheJobWithTheReason) {
  start(test::loopback_options());
  Ranks ranks(2);
  Asker a = asker();
  const auto accept = serve(a, ranks);
  ASSERT_TRUE(accept);
  wire::Accept::Station other = accept->stations[0];
  ASSERT_TRUE(ranks.reduce_scatter(0, 1, 1));
  other.capacity++;
  ranks.meet(other);
  EXPECT_TRUE(served(0));
  EXPECT_THAT(last_end(), HasSubstr("roster 1 differs from the one that a rank has sent"));
}

TEST_F(AggregatorTest, ARosterInAnothersNameEndsTheJob) {
  start(test::loopback_options());
  Ranks ranks(2);
  Asker a = asker();
  const auto accept = serve(a, ranks);
  ASSERT_TRUE(accept);
  ASSERT_TRUE(ranks.reduce_scatter(0, 1, 1));
  wire::Writer body;
  wire::put_roster(body, test::roster_of(accept->stations[0]));
  ranks.send(1, Channel::kReduce, {wire::FrameType::kRoster, 1, 0, ranks.tag(), 0, 0},
             body.bytes());
  EXPECT_TRUE(served(0));
  EXPECT_THAT(last_end(), HasSubstr("rank 1 sent a roster"));
}

// However a job ends, its threads, descriptors and quota are released.
TEST_F(AggregatorTest, EveryEndOfAJobReleasesItsResources) {
  Options options = test::loopback_options();
  options.lanes = 2;
  start(options);
  // A thread has its name only once it runs.
  ASSERT_TRUE(until([] { return core_threads() == 1; }, "the aggregator's own thread"));
  const auto lives = [&](const char* how, auto end) {
    const size_t threads_before = core_threads();
    const uint64_t open_before = descriptor_use().open;
    {
      Ranks ranks(3);
      Asker a = asker();
      ASSERT_TRUE(serve(a, ranks));
      EXPECT_TRUE(until([&] { return core_threads() >= threads_before + 2; }, "a thread per lane"));
      ASSERT_TRUE(ranks.reduce_scatter(0, 4, 9));
      end(a, ranks);
      EXPECT_TRUE(served(0)) << how;
    }
    EXPECT_THAT(last_end(), HasSubstr(how));
    EXPECT_EQ(aggregator_->report().quota_used, 0u) << how;
    EXPECT_TRUE(until(
        [&] { return core_threads() == threads_before && descriptor_use().open == open_before; },
        "threads and descriptors of a job to be given back"))
        << how;
  };
  lives("the group has ended", [](Asker& a, Ranks&) { EXPECT_TRUE(a.send(wire::Bye{})); });
  lives("all ranks have left", [](Asker&, Ranks& ranks) { ranks.leave(); });
  lives("all ranks have left", [](Asker& a, Ranks& ranks) {
    a.hang_up();  // the job continues while it has ranks
    EXPECT_TRUE(ranks.reduce_scatter(1, 2, 3));
    for (Member m = 0; m < 3; m++) ranks.part(m);
  });
  lives("the rank that requested it broke the protocol",
        [](Asker& a, Ranks&) { EXPECT_TRUE(a.send(some_ask(3))); });
  lives("rank 1 sent", [](Asker&, Ranks& ranks) {
    ranks.send(1, Channel::kReduce, {wire::FrameType::kCredit, 1, 1, ranks.tag(), 0, 0}, {});
  });
}

TEST_F(AggregatorTest, LateRanksOfAJobAreReported) {
  start(test::loopback_options());
  Ranks ranks(3);
  Asker a = asker();
  ASSERT_TRUE(serve(a, ranks));
  for (const Member m : {Member{0}, Member{1}}) {
    ranks.open(m, 0, 2);
    ASSERT_TRUE(ranks.pump([&] { return ranks.granted(m) > 0; }));
    ranks.contribute(m, 0, 1, 2, 1);
  }
  EXPECT_TRUE(ranks.pump([&] {
    const StationReport s = aggregator_->report().jobs[0].stations[0];
    return s.oldest && s.oldest->missing == std::vector<Member>{2};
  }));
  EXPECT_THAT(json_text(aggregator_->report()), HasSubstr("\"waits_for_ranks\":[2]"));
}

TEST_F(AggregatorTest, DrainingTellsGroupsAndWaitsForThem) {
  start(test::loopback_options());
  Ranks ranks(2);
  Asker a = asker();
  ASSERT_TRUE(serve(a, ranks));
  ASSERT_TRUE(ranks.reduce_scatter(0, 2, 1));
  aggregator_->end(60 * kSecond);
  const auto told = a.receive();
  ASSERT_TRUE(told);
  EXPECT_TRUE(std::holds_alternative<wire::Draining>(*told));
  EXPECT_FALSE(aggregator_->over());
  ASSERT_TRUE(ranks.reduce_scatter(1, 2, 2)) << "what is under way goes on";
  ASSERT_TRUE(a.send(wire::Bye{}));
  EXPECT_TRUE(eventually([&] { return aggregator_->over(); }));
  EXPECT_TRUE(ranks.lost(0));
}

TEST_F(AggregatorTest, GroupsThatDoNotGoAreLeftWhenTheTimeIsOver) {
  start(test::loopback_options());
  Ranks ranks(2);
  Asker a = asker();
  ASSERT_TRUE(serve(a, ranks));
  ASSERT_TRUE(ranks.reduce_scatter(0, 2, 1));
  aggregator_->end(60 * kSecond);
  aggregator_->end(100 * kMilli);
  EXPECT_TRUE(ranks.lost(0));
  aggregator_->stop(0);
  EXPECT_TRUE(aggregator_->report().jobs.empty());
}

TEST_F(AggregatorTest, PortsAndPathsThatAreTakenAreNamed) {
  Options options = test::loopback_options();
  start(options);
  Options same = test::loopback_options();
  same.port = aggregator_->port();
  EXPECT_THAT(Aggregator::start(same, test::simple_deal()).status().message(),
              HasSubstr("listen at 127.0.0.1:" + std::to_string(same.port)));
  Options path = test::loopback_options();
  path.status = options.status;
  EXPECT_THAT(Aggregator::start(path, test::simple_deal()).status().message(),
              HasSubstr("another aggregator answers at " + options.status));
  Options nowhere = test::loopback_options();
  nowhere.host = "no.such.host.invalid";
  EXPECT_THAT(Aggregator::start(nowhere, test::simple_deal()).status().message(),
              HasSubstr("the host no.such.host.invalid is not known"));
  Options unplugged = test::loopback_options();
  unplugged.config.interface = "=nosuch0";
  EXPECT_THAT(Aggregator::start(unplugged, test::simple_deal()).status().message(),
              HasSubstr("nosuch0"));
  aggregator_->stop(0);
  EXPECT_NE(::access(options.status.c_str(), F_OK), 0) << "its socket is gone";
}

TEST(StatusText, StagedShareIsRelativeToFoldedBytes) {
  Report report;
  report.jobs.resize(1);
  report.jobs[0].stations.resize(1);
  EXPECT_THAT(json_text(report), HasSubstr("\"staged_share\":0.000"));
  report.jobs[0].stations[0].folded_bytes = 400;
  report.jobs[0].stations[0].staged_bytes = 100;
  EXPECT_THAT(json_text(report), HasSubstr("\"staged_share\":0.250"));
}

TEST(StatusText, NamesFromOtherHostsAreEscaped) {
  Report report;
  report.jobs.resize(1);
  report.jobs[0].name = "a\"b\\c\n\x01\xff";
  EXPECT_THAT(json_text(report), HasSubstr("\"name\":\"a\\\"b\\\\c???\""));
}

}  // namespace
}  // namespace mcast::service
