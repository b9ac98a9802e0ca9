// Several ranks on a host: their inputs are folded there, each host sends one contribution over the
// network, and memory is never read after it was given back.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Kind;

ClusterOptions on_hosts(const std::vector<uint32_t>& host_of) {
  ClusterOptions o;
  o.ranks = static_cast<uint32_t>(host_of.size());
  o.group.host_of = host_of;
  return o;
}

// Returns the payload bytes between ranks for one reduction of `bytes` per rank.
uint64_t sent(const std::vector<uint32_t>& host_of, Kind kind, size_t bytes) {
  Cluster c(on_hosts(host_of));
  Runs runs;
  const size_t block = kind == Kind::kReduceScatter ? bytes / host_of.size() : bytes;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.reduction(r, kind, 0, block, 3));
  finish(c, runs);
  EXPECT_EQ(c.total(Counter::reduce_bytes_sent), c.total(Counter::reduce_bytes_received));
  return c.total(Counter::reduce_bytes_sent);
}

TEST(Hosts, BytesBetweenThemDoNotGrowWithTheirRanks) {
  constexpr size_t kBytes = 12 * 40'000;
  for (const Kind kind : {Kind::kReduceScatter, Kind::kAllreduce}) {
    // Every host sends the sum of its ranks to the owners on other hosts: everything but its own
    // part.
    const uint64_t four = sent({0, 1, 2, 3}, kind, kBytes);
    EXPECT_EQ(four, 3 * kBytes);
    EXPECT_EQ(sent({0, 0, 1, 1, 2, 2, 3, 3}, kind, kBytes), four);
    EXPECT_EQ(sent({0, 1, 2, 3, 0, 1, 2, 3}, kind, kBytes), four);
    EXPECT_EQ(sent({0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}, kind, kBytes), four);
    // Uneven hosts: every block gets (hosts - 1) contributions.
    EXPECT_EQ(sent({0, 0, 0, 0, 1, 2}, kind, kBytes), 2 * kBytes);
  }
}

// Returns the float16 results of all ranks, where rank r gives all elements the bits inputs[r].
std::set<uint16_t> reduced_halves(const std::vector<uint32_t>& host_of, Reduction reduction,
                                  const std::vector<uint16_t>& inputs, size_t count) {
  Cluster c(on_hosts(host_of));
  std::set<uint16_t> results;
  const auto halves = [](std::byte* data, size_t bytes) {
    return std::span(reinterpret_cast<uint16_t*>(data), bytes / 2);
  };
  c.adjust = [&](Member r, Post& post) {
    const Slice& input = post.reduce->inputs[0];
    std::ranges::fill(halves(input.data(), input.length), inputs[r]);
  };
  c.at_done = [&](const OpRun& run) {
    for (const uint16_t half : halves(run.memory->data(), run.block)) results.insert(half);
  };
  wire::Descriptor d;
  d.kind = Kind::kAllreduce;
  d.element = static_cast<uint8_t>(Element::kFloat16);
  d.reduction = static_cast<uint8_t>(reduction);
  d.bytes = 2 * count;
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.call(r, d, 3));
  EXPECT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (const auto& run : runs) EXPECT_TRUE(run->status.ok()) << run->status.to_string();
  return results;
}

constexpr size_t kTwoSteps = 100'003;  // more elements than fit into one step

TEST(Hosts, SumsBeyondTheRangeOfOneHostAreRight) {
  // 40000 + 40000 - 40000 - 39008 = 992.
  EXPECT_EQ(
      reduced_halves({0, 0, 1, 1}, Reduction::kSum, {0x78e2, 0x78e2, 0xf8e2, 0xf8c3}, kTwoSteps),
      std::set<uint16_t>{0x63c0});
  // 1024 * 1024 * 2^-10 * 2^-10 = 1.
  EXPECT_EQ(reduced_halves({0, 0, 1, 1}, Reduction::kProduct, {0x6400, 0x6400, 0x1400, 0x1400},
                           kTwoSteps),
            std::set<uint16_t>{0x3c00});
}

TEST(Hosts, SmallAveragesDoNotVanish) {
  // The average of equal values is that value, 3 * 2^-24, also if a host has one rank.
  const std::vector<uint16_t> inputs(9, 3);
  EXPECT_EQ(reduced_halves({0, 0, 0, 0, 1, 1, 1, 1, 2}, Reduction::kAvg, inputs, kTwoSteps),
            std::set<uint16_t>{3});
}

TEST(Hosts, SumsOfHalvesTakeTwiceTheBytesBetweenThemAndNoOthers) {
  const auto bytes = [](Element element, Reduction reduction) {
    Cluster c(on_hosts({0, 0, 1, 1}));
    wire::Descriptor d;
    d.kind = Kind::kReduceScatter;
    d.element = static_cast<uint8_t>(element);
    d.reduction = static_cast<uint8_t>(reduction);
    d.bytes = 2 * kTwoSteps;
    Runs runs;
    for (Member r = 0; r < c.size(); r++) runs.push_back(c.call(r, d, 3));
    finish(c, runs);
    return c.total(Counter::reduce_bytes_sent);
  };
  const uint64_t once = 4 * 2 * kTwoSteps;
  EXPECT_EQ(bytes(Element::kFloat16, Reduction::kSum), 2 * once);
  EXPECT_EQ(bytes(Element::kFloat16, Reduction::kMax), once);
  EXPECT_EQ(bytes(Element::kBFloat16, Reduction::kAvg), once);
}

TEST(Hosts, SmallBlocksToo) {
  // Sent unasked, since it is below the size that needs a grant.
  EXPECT_EQ(sent({0, 0, 1, 1}, Kind::kReduceScatter, 4 * 1000), 4000u);
  EXPECT_EQ(sent({0, 0, 0, 1}, Kind::kReduceScatter, 4 * 1000), 4000u);
}

TEST(Hosts, AnInputIsKeptUntilTheOthersHaveReadIt) {
  // Rank 1's own block is complete long before rank 0, which is late, has folded rank 1's input.
  Cluster c(on_hosts({0, 0, 1}));
  Runs runs;
  for (const Member r : {Member{1}, Member{2}}) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 4000, 3));
  }
  c.run_for(50 * kMilli);
  EXPECT_FALSE(runs[0]->done());
  EXPECT_EQ(c.total(Counter::shm_direct_bytes), 0u);
  runs.push_back(c.reduction(0, Kind::kReduceScatter, 0, 4000, 3));
  finish(c, runs);
  EXPECT_GT(c.total(Counter::shm_direct_bytes), 0u);
}

TEST(Hosts, StagedInputsAreReadWhenTheyAreThere) {
  Cluster c(on_hosts({0, 0, 1, 1}));
  std::vector<std::shared_ptr<Region>> regions;
  c.adjust = [&](Member, Post& post) {
    regions.push_back(post.reduce->inputs[0].region);
    regions.back()->set_readable(0);
  };
  Runs runs;
  for (Member r = 0; r < 4; r++) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 100'000, 3));
  }
  for (const uint64_t ready : {uint64_t{100'000}, uint64_t{250'000}}) {
    for (const auto& region : regions) region->set_readable(ready);
    c.run_for(20 * kMilli);
    EXPECT_EQ(c.total(Counter::reduce_bytes_sent), 0u);
  }
  for (const auto& region : regions) region->set_readable(region->size());
  finish(c, runs);
}

TEST(Hosts, MemoryThatWasGivenBackIsNotTakenForGood) {
  // Rank 0 tells rank 1 the place of its input and then gives up, which the others do not notice,
  // and its memory changes. When rank 2 finally calls, rank 1 folds the changed bytes for rank 4,
  // which needs nothing else from rank 0.
  Cluster c(on_hosts({0, 0, 0, 1, 2}));
  bool quiet = false;
  c.net().set_frame_hook(
      [&](size_t from, size_t, Channel, ConstBytes) { return !(quiet && from == 0); });
  c.net().set_datagram_hook([&](size_t from, size_t, ConstBytes) {
    return quiet && from == 0 ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
  });
  Runs runs;
  const auto post = [&](Member r) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 4000, 3));
  };
  for (const Member r : {Member{0}, Member{1}, Member{3}, Member{4}}) post(r);
  c.run_for(5 * kMilli);
  quiet = true;
  c.group(0).core().fail(make_error<ErrorId::aborted>(0, "enough"), 0, c.now());
  post(2);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
  for (const auto& run : runs) {
    ASSERT_FALSE(run->status.ok()) << run->rank << " " << run->check(5);
    EXPECT_TRUE(run->rank == 0
                    ? is_error(run->status, ErrorId::aborted, {{"rank", "0"}, {"reason", "enough"}})
                    : is_error(run->status, ErrorId::rank_lost,
                               {{"rank", "0"}, {"why", "its memory cannot be read"}}));
  }
}

TEST(Hosts, OffersOutOfPlaceBreakTheProtocol) {
  for (const auto type : {wire::FrameType::kReduceOffer, wire::FrameType::kReduceTaken}) {
    for (const Member from : {Member{0}, Member{2}}) {
      for (const bool flat : {true, false}) {
        Cluster c(on_hosts(flat ? std::vector<uint32_t>{0, 1, 2} : std::vector<uint32_t>{0, 0, 1}));
        Runs runs{c.reduction(1, Kind::kReduceScatter, 0, 100'000, 3)};
        const auto& core = c.group(1).core();
        wire::FrameHeader header;
        header.type = type;
        header.member = from;
        header.group_tag = core.params().tag;
        wire::Descriptor d{Kind::kReduceScatter, static_cast<uint8_t>(Element::kInt32), kNoMember,
                           100'000, ""};
        d.reduction = static_cast<uint8_t>(Reduction::kSum);
        header.argument = d.hash();
        wire::Writer body;
        if (type == wire::FrameType::kReduceOffer) wire::put_reduce_offer(body, {});
        body.put<uint8_t>(0);
        c.group(1).core().on_frame(header, body.bytes(), c.now());
        c.group(1).core().deliver();
        ASSERT_TRUE(runs[0]->done());
        EXPECT_EQ(runs[0]->status.code(), Code::kInternal) << runs[0]->status.to_string();
      }
    }
  }
}

TEST(Hosts, ARankFarAheadOffersLittleOfIt) {
  Cluster c(on_hosts({0, 0, 1}));
  int offers = 0;
  c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (wire::parse_frame(frame, h) && h.type == wire::FrameType::kReduceOffer) {
      EXPECT_EQ(from + to, 1u);
      offers++;
    }
    return true;
  });
  Runs runs;
  for (const Member r : {Member{0}, Member{2}, Member{1}}) {
    for (uint64_t id = 1; id <= 300; id++) {
      runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 400, 2 * id + 1));
    }
    c.run_for(20 * kMilli);
    if (r != 1) {
      EXPECT_EQ(offers, 64);
    }
  }
  finish(c, runs);
  EXPECT_EQ(offers, 600);
}

TEST(Hosts, NoTwoOffersAreAlike) {
  // Ranks may share a process, in which one rank can get the memory that another gave back.
  Cluster c(on_hosts({0, 0, 0, 1}));
  std::map<uint64_t, std::pair<size_t, Sequence>> cookies;
  c.net().set_frame_hook([&](size_t from, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    wire::ReduceOffer offer;
    if (wire::parse_frame(frame, h) && h.type == wire::FrameType::kReduceOffer) {
      EXPECT_TRUE(wire::parse_reduce_offer(frame.subspan(wire::kFrameHeader), offer));
      const std::pair whose(from, h.sequence);
      EXPECT_EQ(cookies.emplace(offer.cookie, whose).first->second, whose);
    }
    return true;
  });
  Runs runs;
  for (Member r = 0; r < 4; r++) {
    for (uint64_t id = 1; id <= 5; id++) {
      runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 400, 2 * id + 1));
    }
  }
  finish(c, runs);
  EXPECT_EQ(cookies.size(), 15u);
}

TEST(Hosts, ReductionsThatDifferAreDescribed) {
  Cluster c(on_hosts({0, 0, 1}));
  Runs runs;
  for (Member r = 0; r < 3; r++) {
    runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, r == 1 ? 8000 : 4000, 3));
  }
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
  for (const auto& run : runs) {
    EXPECT_EQ(run->status.code(), Code::kMismatch) << run->status.to_string();
  }
}

}  // namespace
}  // namespace mcast::test
