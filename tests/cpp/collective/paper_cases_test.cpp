// The cases that every implementation of the paper's protocol must handle, each under a name. A
// hook on the simulated network chooses the losses: unless a test says otherwise, only the first
// copy of the chosen chunks is lost, and the repair that follows is counted.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

constexpr size_t kChunk = 1408;

ClusterOptions paper_ranks(uint32_t n) {
  ClusterOptions o;
  o.ranks = n;
  o.net.jitter = 0;
  return o;
}

// Drops the first copy of every (root, chunk) that `choose` selects, at each receiver that it
// selects.
using Choose = std::function<bool(const wire::DatagramHeader&, size_t to)>;
void lose_once(Cluster& c, Choose choose) {
  auto lost = std::make_shared<std::set<std::tuple<size_t, uint32_t, uint32_t, size_t>>>();
  c.net().set_datagram_hook([choose, lost](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    if (from == to || !is_data(d, h) || !choose(h, to)) return SimNetwork::Verdict::kPass;
    return lost->insert({from, h.sequence, h.chunk, to}).second ? SimNetwork::Verdict::kDrop
                                                                : SimNetwork::Verdict::kPass;
  });
}

// ---- which chunk ----

struct WhichCase {
  const char* name;
  size_t bytes;
  std::set<Chunk> chunks;
};

class LostChunk : public testing::TestWithParam<WhichCase> {};

TEST_P(LostChunk, AtOneReceiverIsFetchedOnce) {
  Cluster c(paper_ranks(4));
  lose_once(c, [](const wire::DatagramHeader& h, size_t to) {
    return to == 2 && GetParam().chunks.count(h.chunk);
  });
  finish(c, broadcast_all(c, 0, GetParam().bytes, 1));
  EXPECT_EQ(c.total(Counter::gaps), GetParam().chunks.size());
  EXPECT_EQ(c.total(Counter::repair_chunks_sent), GetParam().chunks.size());
  EXPECT_EQ(c.total(Counter::remulticast_chunks), 0u);
}

TEST_P(LostChunk, AtAllReceiversIsMulticastAgainOnce) {
  Cluster c(paper_ranks(5));
  lose_once(c, [](const wire::DatagramHeader& h, size_t) {
    return GetParam().chunks.count(h.chunk) > 0;
  });
  finish(c, broadcast_all(c, 0, GetParam().bytes, 1));
  EXPECT_EQ(c.total(Counter::gaps), 4 * GetParam().chunks.size());
  // The neighbour of the last rank is the root itself, which may reply to it before the others
  // request.
  EXPECT_LE(c.total(Counter::repair_chunks_sent), 4 * GetParam().chunks.size());
  EXPECT_GE(c.total(Counter::remulticast_chunks), GetParam().chunks.size());
  EXPECT_LE(c.total(Counter::remulticast_chunks), 2 * GetParam().chunks.size());
}

TEST_P(LostChunk, AtAContiguousArcOfTheRing) {
  Cluster c(paper_ranks(6));
  // Ranks 2, 3 and 4 send requests to 3, 4 and 5; only the last finds the chunk at its neighbour.
  lose_once(c, [](const wire::DatagramHeader& h, size_t to) {
    return to >= 2 && to <= 4 && GetParam().chunks.count(h.chunk);
  });
  finish(c, broadcast_all(c, 0, GetParam().bytes, 1));
  EXPECT_EQ(c.total(Counter::gaps), 3 * GetParam().chunks.size());
  EXPECT_LE(c.total(Counter::repair_chunks_sent) + c.total(Counter::remulticast_chunks),
            3 * GetParam().chunks.size());
}

TEST_P(LostChunk, InTwoBlocksOfAnAllgatherAtOnce) {
  Cluster c(paper_ranks(4));
  lose_once(c, [](const wire::DatagramHeader& h, size_t to) {
    return to == 3 && (h.member == 0 || h.member == 2) && GetParam().chunks.count(h.chunk);
  });
  finish(c, allgather_all(c, GetParam().bytes, 1));
  EXPECT_EQ(c.total(Counter::gaps), 2 * GetParam().chunks.size());
  EXPECT_EQ(c.total(Counter::repair_chunks_sent), 2 * GetParam().chunks.size());
}

INSTANTIATE_TEST_SUITE_P(Which, LostChunk,
                         testing::Values(WhichCase{"first", 40 * kChunk, {0}},
                                         WhichCase{"middle", 40 * kChunk, {17}},
                                         WhichCase{"last", 40 * kChunk, {39}},
                                         WhichCase{"last_short", 39 * kChunk + 100, {39}},
                                         // The gap in the paper's own protocol: an earlier lost
                                         // chunk must not get the last chunk's length.
                                         WhichCase{"earlier_of_short_last", 39 * kChunk + 100, {3}},
                                         WhichCase{"first_and_last", 39 * kChunk + 1, {0, 39}},
                                         WhichCase{"small_op", 3 * kChunk + 7, {1, 3}},
                                         WhichCase{"only_chunk", 5, {0}}),
                         [](const auto& p) { return std::string(p.param.name); });

TEST(PaperCases, WholeBlockLostAtOneReceiverIsRepairedOnce) {
  Cluster c(paper_ranks(4));
  lose_once(c, [](const wire::DatagramHeader& h, size_t to) { return h.member == 1 && to == 3; });
  finish(c, allgather_all(c, 20 * kChunk, 1));
  EXPECT_EQ(c.total(Counter::repair_chunks_sent), 20u);
}

TEST(PaperCases, WholeBlockLostEverywhereCostsAtMostTwoRepeats) {
  Cluster c(paper_ranks(4));
  lose_once(c, [](const wire::DatagramHeader& h, size_t) { return h.member == 1; });
  finish(c, allgather_all(c, 200 * kChunk, 1));
  EXPECT_LE(c.total(Counter::remulticast_chunks), 2 * 200u);
  EXPECT_EQ(c.total(Counter::fetch_timeouts), 0u);
}

TEST(PaperCases, StreamsCarryAllOpsIfEveryDatagramIsLost) {
  // Streams alone must be able to carry a group whose multicast died after the probe.
  Cluster c(paper_ranks(4));
  c.net().set_datagram_hook([](size_t from, size_t to, ConstBytes) {
    return from == to ? SimNetwork::Verdict::kPass : SimNetwork::Verdict::kDrop;
  });
  Runs runs = broadcast_all(c, 2, 100 * kChunk, 1);
  for (auto& r : allgather_all(c, 30 * kChunk, 2)) runs.push_back(r);
  for (auto& r : broadcast_all(c, 1, 100, 3)) runs.push_back(r);
  for (auto& r : barrier_all(c)) runs.push_back(r);
  finish(c, runs, 120 * kSecond);
}

// ---- other losses ----

TEST(PaperCases, OnlyPositionsLost) {
  Cluster c(paper_ranks(4));
  c.net().set_datagram_hook([](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    const bool parsed = wire::parse_datagram(d, h) == wire::ParseError::kNone;
    const bool position = parsed && h.type == wire::DatagramType::kPosition;
    const bool tail = parsed && h.type == wire::DatagramType::kData && h.chunk >= 38;
    return from != to && (position || tail) ? SimNetwork::Verdict::kDrop
                                            : SimNetwork::Verdict::kPass;
  });
  finish(c, broadcast_all(c, 0, 40 * kChunk, 1));
  // The receiver learns the end of the stream from the Position frames.
  EXPECT_GT(c.total(Counter::positions_received), 0u);
}

// Drops the first `count` frames of a type, at one step of the request and reply.
void drop_frames(Cluster& c, wire::FrameType type, int count) {
  auto left = std::make_shared<int>(count);
  c.net().set_frame_hook([type, left](size_t, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (!wire::parse_frame(frame, h) || h.type != type || *left == 0) return true;
    (*left)--;
    return false;
  });
}

class LostFrame : public testing::TestWithParam<wire::FrameType> {};

TEST_P(LostFrame, TimersOfTheFetchRecover) {
  Cluster c(paper_ranks(5));
  drop_frames(c, GetParam(), 3);
  // Chunk 20 is lost everywhere, and so is its first repetition.
  std::map<std::pair<Chunk, size_t>, int> copies;
  c.net().set_datagram_hook([&copies](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    if (from == to || !is_data(d, h)) return SimNetwork::Verdict::kPass;
    const int copy = copies[{h.chunk, to}]++;
    const bool lost = (h.chunk % 7 == 3 && to == 2 && copy == 0) || (h.chunk == 20 && copy < 2);
    return lost ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
  });
  finish(c, broadcast_all(c, 0, 60 * kChunk, 1));
  EXPECT_GT(c.total(Counter::fetch_timeouts), 0u);
}

INSTANTIATE_TEST_SUITE_P(Type, LostFrame,
                         testing::Values(wire::FrameType::kFetch, wire::FrameType::kFetchData,
                                         wire::FrameType::kNotHave, wire::FrameType::kComing),
                         [](const auto& p) { return std::string(wire::frame_type_name(p.param)); });

// ---- sizes and ranks ----

class Shapes : public testing::TestWithParam<std::tuple<uint32_t, uint32_t>> {};

TEST_P(Shapes, SizeBoundariesWithAndWithoutLoss) {
  const auto [n, chains] = GetParam();
  for (const double loss : {0.0, 0.1}) {
    ClusterOptions o = paper_ranks(n);
    o.net.seed = n * 100 + chains;
    o.group.agreed.chains = chains;
    o.group.agreed.eager = 4 * kChunk;
    Cluster c(o);
    c.net().faults().drop = loss;
    Runs runs;
    uint64_t id = 0;
    for (const size_t bytes : {size_t{0}, size_t{1}, kChunk - 1, kChunk, kChunk + 1, 4 * kChunk,
                               4 * kChunk + 1, 50 * kChunk + 13, 150 * kChunk}) {
      id += 2;
      for (auto& r : allgather_all(c, bytes, id)) runs.push_back(r);
      for (auto& r : broadcast_all(c, static_cast<Member>(id % n), bytes, id + 1))
        runs.push_back(r);
    }
    finish(c, runs, 120 * kSecond);
    if (loss == 0) {
      EXPECT_EQ(c.total(Counter::repair_chunks_sent), 0u);
      EXPECT_EQ(c.total(Counter::remulticast_chunks), 0u);
    }
  }
}

// P = 1, 2, 3, primes; M that divides P, and M that does not; M > P.
INSTANTIATE_TEST_SUITE_P(Ranks, Shapes,
                         testing::Combine(testing::Values(1u, 2u, 3u, 5u, 7u, 8u),
                                          testing::Values(0u, 1u, 2u, 3u, 20u)));

// ---- slow and dead ranks ----

TEST(PaperCases, FirstLargeOpWaitsForASlowRank) {
  Cluster c(paper_ranks(4));
  Runs runs;
  for (Member r = 0; r < 3; r++) runs.push_back(c.allgather(r, 100 * kChunk, 1));
  c.run_for(5 * kSecond);
  for (const auto& r : runs) EXPECT_FALSE(r->done());
  runs.push_back(c.allgather(3, 100 * kChunk, 1));
  finish(c, runs);
}

TEST(PaperCases, SmallOpsDoNotWaitForASlowRankThatCatchesUp) {
  Cluster c(paper_ranks(4));
  Runs runs;
  for (uint64_t id = 1; id <= 20; id++) {
    for (Member r = 0; r < 3; r++)
      runs.push_back(c.broadcast(r, static_cast<Member>(id % 3), 9000, id));
  }
  c.run_for(3 * kSecond);
  // Small operations do not wait for the slow rank, within the memory for copies.
  for (const auto& r : runs) EXPECT_TRUE(r->done());
  for (uint64_t id = 1; id <= 20; id++) {
    runs.push_back(c.broadcast(3, static_cast<Member>(id % 3), 9000, id));
  }
  finish(c, runs);
}

TEST(PaperCases, BroadcastCompletesIfADonorIsPausedDuringRepair) {
  Cluster c(paper_ranks(4));
  lose_once(c,
            [](const wire::DatagramHeader& h, size_t to) { return to == 1 && h.chunk % 3 == 0; });
  // Rank 2 is the donor of rank 1.
  c.net().set_frame_hook([&c](size_t, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (to == 2 && !c.paused(2) && wire::parse_frame(frame, h) &&
        h.type == wire::FrameType::kFetch) {
      c.pause(2, true);
      c.at(c.now() + 2 * kSecond, [&c] { c.pause(2, false); });
    }
    return true;
  });
  finish(c, broadcast_all(c, 0, 100 * kChunk, 1));
  EXPECT_GT(c.total(Counter::fetch_timeouts), 0u);
}

TEST(PaperCases, DeadRankEndsTheOpEverywhere) {
  for (const Member dead : {0, 1, 3}) {
    Cluster c(paper_ranks(4));
    Runs runs;
    for (Member r = 0; r < 4; r++) {
      if (r != dead) runs.push_back(c.allgather(r, 100 * kChunk, 1));
    }
    c.run_for(10 * kMilli);
    c.kill(dead);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, kSecond));
    for (const auto& r : runs) {
      EXPECT_TRUE(is_error(r->status, ErrorId::rank_lost, {{"rank", std::to_string(dead)}}));
    }
  }
}

// ---- sharing ----

TEST(PaperCases, TwoJobsOnOneAddress) {
  // Every datagram of one job also reaches the other, under its own tag.
  Cluster c(paper_ranks(4));
  GroupParams other;
  other.tag = 0x1234567800;
  const size_t g = c.add_group(other);
  c.net().set_datagram_hook([&c](size_t from, size_t to, ConstBytes d) {
    if (from != to) c.net().inject(to, d);  // arrives twice: once as if from the other's address
    return SimNetwork::Verdict::kPass;
  });
  Runs runs = allgather_all(c, 30 * kChunk, 1);
  for (Member r = 0; r < 4; r++) runs.push_back(c.allgather(r, 20 * kChunk, 2, kNever, g));
  finish(c, runs);
  EXPECT_GT(c.total(Counter::duplicates) + c.total(Counter::stale), 0u);
}

TEST(PaperCases, GroupsPostedInOppositeOrders) {
  Cluster c(paper_ranks(3));
  const size_t g = c.add_group({});
  Runs runs;
  for (Member r = 0; r < 3; r++) {
    const bool swap = r % 2 == 1;
    runs.push_back(c.allgather(r, 80 * kChunk, swap ? 2 : 1, kNever, swap ? g : 0));
    // No rank starts the second group's operations until the first half has had its time.
    c.at(c.now() + (r + 1) * 100 * kMilli, [&c, &runs, r, swap, g] {
      runs.push_back(c.allgather(r, 80 * kChunk, swap ? 1 : 2, kNever, swap ? 0 : g));
    });
  }
  ASSERT_TRUE(c.run([&] { return runs.size() == 6 && all_done(runs); }, 10 * kSecond));
  finish(c, runs);
}

TEST(PaperCases, AnotherIncarnationOnTheSameAddressIsForeign) {
  Cluster c(paper_ranks(3));
  const uint64_t foreign = c.lane(1).foreign();
  wire::DatagramHeader h;
  h.group_tag = 0xdeadbeef;
  std::vector<std::byte> slot(wire::kDatagramHeader + 100);
  wire::write_datagram(slot, h, std::vector<std::byte>(100));
  c.net().inject(1, slot);
  finish(c, allgather_all(c, 5000, 1));
  EXPECT_EQ(c.lane(1).foreign(), foreign + 1);
}

// Groups of a mesh over the same hosts share an address, so rank 1 receives datagrams of another
// group.
TEST(PaperCases, AnotherGroupOfTheSameHostsOnTheSameAddressIsNoAlarm) {
  Cluster c(paper_ranks(3));
  const auto from = [&](uint64_t tag, size_t endpoint) {
    wire::DatagramHeader h;
    h.group_tag = tag;
    std::vector<std::byte> slot(wire::kDatagramHeader + 100);
    wire::write_datagram(slot, h, std::vector<std::byte>(100));
    c.net().inject(1, slot, endpoint);
    c.run_for(kMilli);
  };
  Lane& lane = c.lane(1);
  // A device that forwards received datagrams does not keep their source.
  Transport& transport = lane.transport();
  const bool told = !transport.datagram().sources_of(transport.stream().address(false)).empty();
  const uint64_t foreign = lane.foreign();
  from(0xdeadbeef, 2);
  EXPECT_EQ(lane.neighbour(), told ? 1u : 0u);
  EXPECT_EQ(lane.foreign(), told ? foreign : foreign + 1);
  finish(c, allgather_all(c, 5000, 1));
  const uint64_t tag = c.group(1).core().params().tag, before = lane.foreign();
  lane.remove_group(tag);
  from(tag, 2);
  EXPECT_EQ(lane.late(), 1u);
  EXPECT_EQ(lane.foreign(), before);
  from(0xdeadbeef, 2);  // its host is in no group here any more
  EXPECT_EQ(lane.foreign(), before + 1);
  EXPECT_EQ(lane.neighbour(), told ? 1u : 0u);
}

TEST(PaperCases, DatagramsOfTheOtherLaneAreForeign) {
  Cluster c(paper_ranks(3));
  const uint64_t foreign = c.lane(1).foreign();
  wire::DatagramHeader h;
  h.group_tag = c.group(1).core().params().tag;
  h.lane = 1;  // the lane of the group's reductions numbers separately
  std::vector<std::byte> slot(wire::kDatagramHeader + 100);
  wire::write_datagram(slot, h, std::vector<std::byte>(100));
  c.net().inject(1, slot);
  finish(c, allgather_all(c, 5000, 1));
  EXPECT_EQ(c.lane(1).foreign(), foreign + 1);
  EXPECT_EQ(c.total(Counter::mismatched), 0u);
}

TEST(PaperCases, StalePacketsOfAllEarlierOpsAreHarmless) {
  // Every datagram of 300 small operations is repeated after the last one. The paper's 8-bit task
  // id accepts datagrams that are 256 operations old.
  Cluster c(paper_ranks(3));
  std::vector<std::vector<std::byte>> old;
  c.net().set_datagram_hook([&old](size_t from, size_t to, ConstBytes d) {
    if (from != to && to == 2) old.emplace_back(d.begin(), d.end());
    return SimNetwork::Verdict::kPass;
  });
  for (uint64_t id = 1; id <= 300; id++) finish(c, broadcast_all(c, 0, 1500, id));
  c.net().set_datagram_hook({});
  Runs runs = broadcast_all(c, 0, 1500, 301);
  const uint64_t before = c.total(Counter::stale);
  for (const auto& d : old) c.net().inject(2, d);
  finish(c, runs);
  EXPECT_GE(c.total(Counter::stale), before + 590);
}

TEST(PaperCases, LatePacketAfterReleaseTouchesNothing) {
  Cluster c(paper_ranks(3));
  std::vector<std::byte> late;
  c.net().set_datagram_hook([&late](size_t from, size_t to, ConstBytes d) {
    wire::DatagramHeader h;
    if (from != to && to == 2 && is_data(d, h) && h.chunk == 5) late.assign(d.begin(), d.end());
    return SimNetwork::Verdict::kPass;
  });
  Runs runs = broadcast_all(c, 0, 40 * kChunk, 1);
  finish(c, runs);
  c.net().inject(2, late);
  c.run_for(kSecond);  // the caller owns the memory again; Guarded sees writes
  EXPECT_EQ(c.total(Counter::stale), 1u);
}

// ---- timers and echo ----

TEST(PaperCases, TimerShorterThanTheMulticastStaysCorrect) {
  ClusterOptions o = paper_ranks(4);
  o.group.alpha = 1;  // nanosecond
  o.net.latency = kMilli;
  o.net.rate = 2e7;
  Cluster c(o);
  Runs runs = broadcast_all(c, 0, 200 * kChunk, 1);
  for (auto& r : allgather_all(c, 60 * kChunk, 2)) runs.push_back(r);
  finish(c, runs);
}

TEST(PaperCases, OwnEchoIsDroppedByMember) {
  Cluster c(paper_ranks(3));
  finish(c, allgather_all(c, 10 * kChunk, 1));
  // The simulated network loops every multicast back to its sender.
  EXPECT_GE(c.total(Counter::own_echo), 30u);
  EXPECT_EQ(c.total(Counter::duplicates), 0u);
}

TEST(PaperCases, DuplicatesAreCountedAndNeverProgress) {
  Cluster c(paper_ranks(3));
  c.net().faults().duplicate = 1.0;
  c.net().faults().reorder_delay = 10 * kMicro;
  finish(c, allgather_all(c, 30 * kChunk, 1));
  EXPECT_EQ(c.total(Counter::chunks_placed), 30u * 3 * 2);
  EXPECT_GT(c.total(Counter::duplicates), 0u);
}

}  // namespace
}  // namespace mcast::test
