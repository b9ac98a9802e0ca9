// The costs of repair, announcements and mismatches: queues stay short on slow links, announcements
// are sent once, and bytes of another call are never accepted as this call's.
#include <gtest/gtest.h>

#include "support/cluster.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Kind;

// Drops all data sent to `to`, or to all ranks (kNoMember).
void lose_data(Cluster& c, Member to = kNoMember) {
  c.net().set_datagram_hook([to](size_t from, size_t at, ConstBytes d) {
    wire::DatagramHeader h;
    return from != at && is_data(d, h) && (to == kNoMember || at == to)
               ? SimNetwork::Verdict::kDrop
               : SimNetwork::Verdict::kPass;
  });
}

// Delivers only frames of `type` and those that end an operation.
void pass_only(Cluster& c, wire::FrameType type) {
  c.net().set_frame_hook([type](size_t, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    return wire::parse_frame(frame, h) && (h.type == type || h.type == wire::FrameType::kDescribe ||
                                           h.type == wire::FrameType::kAbort);
  });
}

// ---- repairs on a link that is slower than the requests ----

TEST(Repairs, NoMoreIsQueuedThanALinkTakesSoon) {
  ClusterOptions o;
  o.ranks = 4;
  o.net.stream_rate = 2e6;
  Cluster c(o);
  c.net().block_multicast(0, SIZE_MAX);  // and no rank is notified
  constexpr size_t kBytes = 6u << 20;
  Runs runs = broadcast_all(c, 0, kBytes, 1);
  size_t most = 0;
  ASSERT_TRUE(c.run(
      [&] {
        for (Member from = 0; from < 4; from++) {
          for (PeerId to = 0; to < 4; to++) {
            if (to == from) continue;
            most = std::max(most, c.lane(from).transport().stream().queued(to, Channel::kRepair));
          }
        }
        return all_done(runs);
      },
      60 * kSecond));
  expect_good(runs, 4);
  EXPECT_LE(most, (256u + 64u) << 10);
  // Repeating a request while the reply waits for the link queues nothing more.
  const uint64_t chunks = (kBytes + 1407) / 1408 * 3;
  EXPECT_LE(c.total(Counter::repair_chunks_sent), chunks + chunks / 4);
}

TEST(Ring, NoMoreIsQueuedThanALinkTakesSoon) {
  ClusterOptions o;
  o.ranks = 3;
  o.net.stream_rate = 2e6;
  o.group.multicast.wanted = false;
  Cluster c(o);
  Runs runs = broadcast_all(c, 0, 3u << 20, 1);
  size_t most = 0;
  ASSERT_TRUE(c.run([&] {
    for (Member from = 0; from < 2; from++) {
      const PeerId to = from + 1u;
      most = std::max(most, c.lane(from).transport().stream().queued(to, Channel::kRepair));
    }
    return all_done(runs);
  }));
  expect_good(runs, 3);
  EXPECT_LE(most, (256u + 64u) << 10);
}

// ---- announcements ----

uint64_t positions_of(uint32_t ranks, Nanos wait) {
  ClusterOptions o;
  o.ranks = ranks;
  o.group.arity = 4;
  Cluster c(o);
  Runs runs;
  for (Member r = 0; r + 1u < ranks; r++) runs.push_back(c.allgather(r, 100, 1));
  for (Member r = 0; r + 1u < ranks; r++) runs.push_back(c.broadcast(r, 0, 500'000, 2));
  c.run_for(wait);
  const uint64_t sent = c.total(Counter::positions_sent);
  runs.push_back(c.allgather(static_cast<Member>(ranks - 1), 100, 1));
  runs.push_back(c.broadcast(static_cast<Member>(ranks - 1), 0, 500'000, 2));
  finish(c, runs);
  return sent;
}

TEST(Announcements, LateRankIsNotifiedOnce) {
  for (const uint32_t ranks : {2u, 9u, 33u}) {
    const uint64_t soon = positions_of(ranks, 100 * kMilli);
    EXPECT_LE(soon, 4u * ranks + 4u);
    EXPECT_EQ(positions_of(ranks, 20 * kSecond), soon) << ranks << " ranks";
  }
}

TEST(Announcements, SilentWhereAllMarksShowThatEverybodyKnows) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  Runs runs = broadcast_all(c, 0, 300'000, 1);
  // Rank 2 has all data, but its confirmation is delayed.
  c.net().set_frame_hook([](size_t from, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    return !(from == 2 && wire::parse_frame(frame, h) && h.type == wire::FrameType::kComplete);
  });
  c.run_for(kSecond);
  const uint64_t before = c.total(Counter::positions_sent);
  c.run_for(5 * kSecond);
  EXPECT_EQ(c.total(Counter::positions_sent), before);
}

// ---- long paths ----

// A path of 10 Gbit/s with a round trip of 4 ms holds 5 MB. A switch port's queue is 2 MiB, so a
// window of that size would use two fifths of the link.
TEST(LongPath, WindowGrowsToThePathsCapacity) {
  ClusterOptions o;
  o.ranks = 3;
  o.net.rate = 1.25e9;
  o.net.send_queue = 4 << 20;
  o.net.latency = o.net.stream_latency = 2 * kMilli;
  o.net.jitter = 0;
  o.net.max_datagram = 8896 + wire::kDatagramHeader;
  o.group.agreed.chunk = 8896;
  o.net.receive_budget = o.group.agreed.budget = 32 << 20;
  Cluster c(o);
  constexpr size_t kBytes = 48u << 20;
  for (uint64_t id = 1; id <= 3; id++) {
    const Nanos began = c.now();
    Runs runs = broadcast_all(c, 0, kBytes, id);
    finish(c, runs);
    Nanos took = 0;
    for (const auto& r : runs) took = std::max(took, r->done_at - began);
    const auto at_link = static_cast<Nanos>(static_cast<double>(kBytes) / 1.25);  // in virtual ns
    if (id == 1) continue;  // the first operation adapts the window
    EXPECT_LE(took, at_link * 3 / 2) << "operation " << id;
  }
  EXPECT_EQ(c.net().totals().overflowed, 0u);
}

// ---- bytes of another call ----

// Rank 2 called another operation of the same size, lost the data, and requests a repair.
TEST(OtherCalls, ARepairNeverBringsTheBytesOfAnotherCall) {
  for (const size_t bytes : {size_t{4000}, size_t{200'000}}) {
    ClusterOptions o;
    o.ranks = 3;
    o.group.liveness_limit = 2 * kSecond;
    Cluster c(o);
    lose_data(c, 2);
    Runs runs;
    for (Member r = 0; r < 2; r++) {
      runs.push_back(c.call(r, {Kind::kBroadcast, 6, 0, bytes, "ours"}, 1));
    }
    runs.push_back(c.call(2, {Kind::kBroadcast, 7, 0, bytes, "another"}, 1));
    ASSERT_TRUE(c.run([&] { return runs[2]->done(); }, 30 * kSecond));
    EXPECT_EQ(runs[2]->status.code(), Code::kMismatch) << runs[2]->status.to_string();
    ASSERT_TRUE(c.run([&] { return c.group(0).core().failed() && c.group(1).core().failed(); },
                      30 * kSecond));
    EXPECT_EQ(c.group(0).core().failure().code(), Code::kMismatch);
    EXPECT_EQ(c.total(Counter::repair_chunks_received), 0u);
  }
}

// Rank 2 called another operation of the same size. The data may arrive before its call.
TEST(OtherCalls, DataNeverBringsTheBytesOfAnotherCall) {
  for (const size_t bytes : {size_t{4000}, size_t{200'000}}) {
    for (const bool late : {false, true}) {
      ClusterOptions o;
      o.ranks = 3;
      o.group.liveness_limit = 2 * kSecond;
      Cluster c(o);
      Runs runs;
      for (Member r = 0; r < 2; r++) {
        runs.push_back(c.call(r, {Kind::kBroadcast, 6, 0, bytes, "ours"}, 1));
      }
      if (late) c.run_for(500 * kMicro);
      runs.push_back(c.call(2, {Kind::kBroadcast, 7, 0, bytes, "another"}, 1));
      ASSERT_TRUE(c.run([&] { return runs[2]->done(); }, 30 * kSecond));
      EXPECT_EQ(runs[2]->status.code(), Code::kMismatch) << runs[2]->status.to_string();
      EXPECT_EQ(c.group(2).counters().get(Counter::chunks_placed), 0u);
    }
  }
}

TEST(OtherCalls, APositionOfAnotherCallIsAMismatch) {
  ClusterOptions o;
  o.ranks = 3;
  Cluster c(o);
  lose_data(c);
  pass_only(c, wire::FrameType::kDescribe);  // nor requests for repair
  Runs runs;
  runs.push_back(c.call(0, {Kind::kBroadcast, 6, 0, 200'000, "ours"}, 1));
  runs.push_back(c.call(1, {Kind::kBroadcast, 7, 0, 200'000, "another"}, 1));
  ASSERT_TRUE(c.run([&] { return runs[1]->done(); }, 10 * kSecond));
  EXPECT_EQ(runs[1]->status.code(), Code::kMismatch) << runs[1]->status.to_string();
}

TEST(OtherCalls, CreditForAnotherCallIsAMismatchWhoeverIsFirst) {
  for (const bool early : {false, true}) {
    ClusterOptions o;
    o.ranks = 3;
    Cluster c(o);
    c.net().block_multicast(0, SIZE_MAX);
    pass_only(c, wire::FrameType::kCredit);
    Runs runs;
    const auto ours = [&] {
      runs.push_back(c.call(0, {Kind::kBroadcast, 6, 0, 200'000, "ours"}, 1));
    };
    if (!early) ours();
    runs.push_back(c.call(1, {Kind::kBroadcast, 7, 0, 200'000, "another"}, 1));
    if (early) {
      c.run_for(kMilli);
      ours();
    }
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
    for (const auto& r : runs) {
      EXPECT_EQ(r->status.code(), Code::kMismatch) << r->status.to_string();
    }
  }
}

// ---- leaving ----

// Rank 2 leaves in order; the release of the barrier reaches rank 1 after the goodbye.
TEST(Leaving, AGoodbyeThatOvertakesTheReleaseFailsNothing) {
  ClusterOptions o;
  o.ranks = 4;
  o.group.arity = 2;
  o.group.liveness_limit = 20 * kSecond;
  Cluster c(o);
  Runs runs = barrier_all(c);
  bool held = true;
  std::vector<std::byte> release;
  c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (held && from == 0 && to == 1 && wire::parse_frame(frame, h) &&
        h.type == wire::FrameType::kReleased) {
      release.assign(frame.begin(), frame.end());
      return false;
    }
    return true;
  });
  ASSERT_TRUE(c.run([&] { return c.group(2).core().quiet() && !release.empty(); }));
  c.group(2).core().leave(c.now());
  c.lane(2).transport().stream().close_peers(c.now());
  c.pause(2, true);
  c.run_for(8 * kSecond);  // rank 2 is the ring neighbour of rank 1
  EXPECT_FALSE(c.group(1).core().failed()) << c.group(1).core().failure().to_string();
  held = false;
  c.net().inject_frame(0, 1, Channel::kControl, release);
  ASSERT_TRUE(c.run([&] { return runs[1]->done(); }, kSecond));
  EXPECT_TRUE(runs[1]->status.ok()) << runs[1]->status.to_string();
}

}  // namespace
}  // namespace mcast::test
