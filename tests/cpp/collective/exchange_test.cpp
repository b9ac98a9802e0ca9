// Exchanges of whole groups: cases that random schedules do not aim at.
#include <array>

#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Kind;

constexpr Kind kExchangeKinds[] = {Kind::kAllToAll, Kind::kGather, Kind::kScatter};

Runs exchange_all(Cluster& c, Kind kind, Member root, size_t bytes, uint64_t id) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.exchange(r, kind, root, bytes, id));
  return runs;
}

TEST(Exchanges, BlocksCrossTheNetworkOnce) {
  for (const bool ring : {false, true}) {
    for (const Kind kind : kExchangeKinds) {
      for (const size_t bytes : {0u, 1u, 16'384u, 16'385u, 1'000'000u}) {
        Cluster c(ranks(5, ring));
        const uint64_t frames = c.total(Counter::frames_sent);
        finish(c, exchange_all(c, kind, 3, bytes, 7));
        uint64_t all = 0;
        for (uint32_t from = 0; from < 5; from++) {
          for (uint32_t to = 0; to < 5; to++) all += exchange_bytes(kind, 7, bytes, 3, from, to);
        }
        EXPECT_EQ(c.total(Counter::exchange_bytes_sent), all) << bytes;
        EXPECT_EQ(c.total(Counter::exchange_bytes_received), all) << bytes;
        EXPECT_EQ(c.total(Counter::datagram_bytes_sent) > 0, !ring) << "the probe";
        // A block of 1 MB takes about 18 pieces, and each pair a few grants.
        EXPECT_LE(c.total(Counter::frames_sent) - frames, 20 * 30 + 100u) << bytes;
      }
    }
  }
}

TEST(Exchanges, ManyInARowOfAllKindsDeliverExactBytes) {
  Cluster c(ranks(4));
  Runs runs;
  for (uint64_t id = 1; id <= 60; id++) {
    for (const Kind kind : kExchangeKinds) {
      for (const auto& run : exchange_all(c, kind, id % 4, (id * 7919) % 60'000, id)) {
        runs.push_back(run);
      }
    }
  }
  finish(c, runs);
}

// Two exchanges use up the allowance for unasked data, so each third one waits until the first is
// over everywhere. Its end is reported at once, not after the usual 500 us.
TEST(Exchanges, InARowDoNotWaitForReports) {
  Cluster c(ranks(4));
  Runs runs;
  const Nanos begin = c.now();
  for (uint64_t id = 1; id <= 60; id++) {
    for (const auto& run : exchange_all(c, Kind::kAllToAll, 0, 40'000, id)) runs.push_back(run);
  }
  finish(c, runs);
  EXPECT_LT(c.now() - begin, 60 * 250 * kMicro);
}

TEST(Exchanges, AmongReductionsWhereRanksShareHosts) {
  ClusterOptions o = ranks(4);
  o.group.host_of = {0, 0, 1, 1};
  Cluster c(o);
  Runs runs;
  for (uint64_t id = 1; id <= 5; id++) {
    for (Member r = 0; r < 4; r++) {
      runs.push_back(c.reduction(r, Kind::kReduceScatter, 0, 100'000, id));
      runs.push_back(c.exchange(r, Kind::kAllToAll, 0, 100'000, id));
      runs.push_back(c.reduction(r, Kind::kAllreduce, 0, 300'000, id));
    }
  }
  finish(c, runs);
}

struct Ahead {
  uint64_t frames = 0, bytes = 0, grants = 0;
};

// All ranks but rank 0 post at once, rank 0 later. Returns the data that each rank sends to rank 0
// before that.
std::vector<Ahead> run_with_a_late_rank(Kind kind, size_t bytes, uint64_t operations) {
  Cluster c(ranks(3));
  std::vector<Ahead> ahead(3);
  c.net().set_frame_hook([&](size_t from, size_t to, Channel channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (to != 0 || channel != Channel::kReduce || !wire::parse_frame(frame, h)) return true;
    ahead[from].frames++;
    ahead[from].bytes += frame.size() - wire::kFrameHeader;
    ahead[from].grants += h.type == wire::FrameType::kExchangeGrant;
    return true;
  });
  Runs runs;
  const auto post = [&](Member r) {
    for (uint64_t id = 1; id <= operations; id++) {
      // Rank 0 is the rank for which the others have blocks.
      runs.push_back(c.exchange(r, kind, kind == Kind::kScatter ? 1 : 0, bytes, id));
    }
  };
  for (Member r = 1; r < 3; r++) post(r);
  c.run_for(100 * kMilli);
  c.net().set_frame_hook(nullptr);
  for (Member r = 0; r < 3; r++) {
    EXPECT_FALSE(c.group(r).core().failed()) << c.group(r).core().failure().message();
  }
  post(0);
  finish(c, runs, 600 * kSecond);
  return ahead;
}

TEST(Exchanges, AreSentAheadOnlyAsFarAsTheAllowance) {
  for (const Kind kind : kExchangeKinds) {
    for (const size_t bytes : {1u, 16'000u, 200'000u}) {
      uint64_t frames = 0;
      for (const Ahead& a : run_with_a_late_rank(kind, bytes, 1'000)) {
        frames += a.frames;
        EXPECT_LE(a.grants, 64u);
        EXPECT_LE(a.bytes + a.frames * 128, 128u << 10);
      }
      EXPECT_GE(frames, 1u) << "nothing was sent ahead";
    }
  }
}

TEST(Exchanges, BlockedGrantDoesNotStallOtherPeers) {
  Cluster c(ranks(2));
  Runs runs;
  // The account has room for the first piece of one exchange; the other exchanges get their grants
  // before it frees up.
  for (const Member r : {Member{0}, Member{1}}) {
    for (uint64_t id = 1; id <= 8; id++) {
      runs.push_back(c.exchange(r, Kind::kGather, 1, 200'000, id));
    }
    c.run_for(10 * kMilli);
  }
  finish(c, runs);
  const uint64_t before = c.total(Counter::exchange_bytes_sent);
  for (uint64_t id = 9; id <= 28; id++) runs.push_back(c.exchange(0, Kind::kGather, 1, 1'000, id));
  c.run_for(10 * kMilli);
  EXPECT_EQ(c.total(Counter::exchange_bytes_sent) - before, 20'000u);
  for (uint64_t id = 9; id <= 28; id++) runs.push_back(c.exchange(1, Kind::kGather, 1, 1'000, id));
  finish(c, runs);
}

TEST(Exchanges, LaterOneLeavesRoomForAnEarlierOne) {
  Cluster c(ranks(3));
  Runs runs;
  for (const Member r : {Member{0}, Member{1}}) {
    for (uint64_t id = 1; id <= 8; id++) {
      runs.push_back(c.exchange(r, Kind::kAllToAll, 0, id == 1 ? 3'000'000 : 70'000, id));
    }
  }
  // Rank 2 takes part in the other exchanges only after the first is over.
  runs.push_back(c.exchange(2, Kind::kAllToAll, 0, 3'000'000, 1));
  ASSERT_TRUE(c.run([&] { return runs.back()->done(); }, 10 * kSecond)) << "waits for each other";
  for (uint64_t id = 2; id <= 8; id++) {
    runs.push_back(c.exchange(2, Kind::kAllToAll, 0, 70'000, id));
  }
  finish(c, runs);
}

// Bounds all bytes that a root has requested at once, over several gathers.
TEST(Exchanges, BytesInFlightToARootAreBounded) {
  constexpr uint32_t kRanks = 24;
  ClusterOptions o = ranks(kRanks);
  o.group.agreed.incast = 512u << 10;
  Cluster c(o);
  std::map<std::pair<Sequence, size_t>, uint64_t> told;
  uint64_t granted = 0, came = 0, most = 0, grants = 0;
  c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (!wire::parse_frame(frame, h)) return true;
    const ConstBytes body = frame.subspan(wire::kFrameHeader);
    if (h.type == wire::FrameType::kExchangeGrant) {
      EXPECT_EQ(from, 5u);
      auto& before = told.try_emplace({h.sequence, to}, kUnaskedBlock).first->second;
      wire::ExchangeGrant grant;
      EXPECT_TRUE(wire::parse_exchange_grant(body, grant));
      granted += grant.end - std::exchange(before, grant.end);
      grants++;
    } else if (h.type == wire::FrameType::kExchangeData) {
      wire::ExchangeData data;
      EXPECT_TRUE(wire::parse_exchange_data(body, data));
      if (data.offset > 0) came += data.payload.size();
    }
    most = std::max(most, granted - came);
    return true;
  });
  Runs runs;
  for (uint64_t id = 1; id <= 3; id++) {
    for (const auto& run : exchange_all(c, Kind::kGather, 5, 300'000, id)) runs.push_back(run);
  }
  finish(c, runs);
  EXPECT_LE(most, o.group.agreed.incast);
  EXPECT_GT(most, o.group.agreed.incast / 2);
  // A window is 22 KiB, and a grant is sent when half of one is free.
  EXPECT_LE(grants, 3 * (kRanks - 1) * 300'000 / 11'000);
}

// While multicast arrives and has priority, exchanges request little at once, but make progress.
TEST(Exchanges, GoOnWhileMulticastArrives) {
  ClusterOptions o = ranks(3);
  const auto arrived = std::make_shared<std::atomic<uint64_t>>(0);
  o.group.multicast.arrived = arrived;
  o.group.policy = LanePolicy::kGather;
  o.group.agreed.incast = 4096;
  Cluster c(o);
  const Runs runs = exchange_all(c, Kind::kAllToAll, 0, 300'000, 1);
  for (int i = 0; i < 5000 && !all_done(runs); i++) {
    *arrived += 1408;
    c.run_for(kMilli);
  }
  finish(c, runs);
}

TEST(Exchanges, WaitForLateReadableSources) {
  Cluster c(ranks(3));
  std::shared_ptr<Region> staged;
  c.adjust = [&](Member rank, Post& post) {
    if (rank != 1) return;
    staged = post.exchange->inputs[0].region;
    staged->set_readable(0);
  };
  const Runs runs = exchange_all(c, Kind::kAllToAll, 0, 100'000, 3);
  c.run_for(50 * kMilli);
  const uint64_t before = c.group(1).counters().get(Counter::exchange_bytes_sent);
  EXPECT_EQ(before, 0u);
  EXPECT_FALSE(runs[0]->done());
  staged->set_readable(70'000);
  c.run_for(50 * kMilli);
  EXPECT_GT(c.group(1).counters().get(Counter::exchange_bytes_sent), 0u);
  EXPECT_FALSE(runs[0]->done());
  staged->set_readable(UINT64_MAX);
  finish(c, runs);
}

// Length that rank 1 has for rank 2, and length that rank 2 expects.
TEST(Exchanges, DifferentLengthsAreAnErrorThatNamesBoth) {
  constexpr std::array<std::pair<size_t, size_t>, 6> kPairs{
      {{100, 101}, {0, 5}, {5, 0}, {100'000, 10}, {10, 100'000}, {200'000, 100'000}}};
  for (const auto& [sent, expected] : kPairs) {
    Cluster c(ranks(3));
    std::vector<std::byte> more(300'000);
    c.adjust = [&, out = sent, in = expected](Member rank, Post& post) {
      const auto region = std::make_shared<Region>(more.data(), more.size(), nullptr);
      if (rank == 1) post.exchange->inputs[2] = {region, 0, out};
      if (rank == 2) post.exchange->outputs[1] = {region, 0, in};
    };
    const Runs runs = exchange_all(c, Kind::kAllToAll, 0, 1000, 1);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
    const Fields wanted{{"sequence", "0"}, {"operation", "all_to_all"},
                        {"rank", "1"},     {"sent", std::to_string(sent)},
                        {"other", "2"},    {"expected", std::to_string(expected)}};
    for (const auto& run : runs) {
      // A rank that had all its blocks may have completed before.
      if (run->rank != 2 && run->status.ok()) continue;
      EXPECT_TRUE(is_error(run->status, ErrorId::lengths_differ, wanted));
    }
    EXPECT_TRUE(c.run(
        [&] {
          for (Member r = 0; r < 3; r++) {
            if (!c.group(r).core().failed()) return false;
          }
          return true;
        },
        kSecond));
    EXPECT_GE(c.total(Counter::mismatched), 1u);
  }
}

TEST(Exchanges, OtherCallsAreAnErrorThatShowsBoth) {
  struct Other {
    Kind kind;
    Member root;
    size_t bytes;
    const char* text;
  };
  const Other others[] = {{Kind::kScatter, 1, 100, "scatter(100 bytes, element type 6, root 1)"},
                          {Kind::kGather, 2, 100, "gather(100 bytes, element type 6, root 2)"},
                          {Kind::kGather, 1, 99, "gather(99 bytes, element type 6, root 1)"},
                          {Kind::kAllToAll, 0, 100, "all_to_all(element type 6)"}};
  for (const Other& other : others) {
    Cluster c(ranks(3));
    Runs runs;
    runs.push_back(c.exchange(0, Kind::kGather, 1, 100, 1));
    runs.push_back(c.exchange(1, Kind::kGather, 1, 100, 1));
    runs.push_back(c.exchange(2, other.kind, other.root, other.bytes, 1));
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 10 * kSecond));
    EXPECT_TRUE(calls_differ(runs[1]->status, 0, "gather(100 bytes, element type 6, root 1)", 2,
                             other.text));
  }
}

TEST(Exchanges, ALateRankIsNamedWhenTheLimitIsOver) {
  for (const Kind kind : kExchangeKinds) {
    Cluster c(ranks(3));
    Runs runs;
    for (const Member r : {Member{0}, Member{1}}) {
      runs.push_back(c.exchange(r, kind, kind == Kind::kScatter ? 2 : 0, 50'000, 1, kSecond));
    }
    ASSERT_TRUE(c.run([&] { return runs[0]->done(); }, 10 * kSecond));
    EXPECT_TRUE(is_error(runs[0]->status, ErrorId::ranks_late, {{"ranks", "2"}}));
    EXPECT_TRUE(has(runs[0]->status, wire::kind_name(kind)));
  }
}

TEST(Exchanges, ADeadRankIsNamedOnAllRanks) {
  for (const Kind kind : kExchangeKinds) {
    Cluster c(ranks(4));
    const Runs runs = exchange_all(c, kind, 2, 3'000'000, 1);
    c.run([&] { return c.total(Counter::exchange_bytes_sent) > 500'000; }, kSecond);
    c.kill(2);
    ASSERT_TRUE(c.run([&] { return runs[0]->done() && runs[1]->done() && runs[3]->done(); },
                      kLiveness + 2 * kSecond));
    for (const Member r : {0, 1, 3}) {
      EXPECT_TRUE(is_error(runs[r]->status, ErrorId::rank_lost, {{"rank", "2"}}));
    }
  }
}

void inject(Cluster& c, wire::FrameType type, uint32_t argument, ConstBytes body) {
  const wire::FrameHeader header{type, 0, 1, c.group(0).core().params().tag, 0, argument};
  std::vector<std::byte> frame(wire::kFrameHeader);
  frame.insert(frame.end(), body.begin(), body.end());
  const std::array<ConstBytes, 1> parts{ConstBytes(frame).subspan(wire::kFrameHeader)};
  wire::write_frame_header(frame.data(), header, parts);
  c.net().inject_frame(1, 0, Channel::kReduce, frame);
}

TEST(Exchanges, InvalidFrameFailsTheGroup) {
  const auto piece = [](uint64_t total, uint64_t offset, size_t bytes) {
    wire::Writer out;
    wire::put_exchange_head(out, total, offset);
    std::vector<std::byte> body(out.bytes().begin(), out.bytes().end());
    body.resize(body.size() + bytes);
    return body;
  };
  const auto grant = [](uint64_t end) {
    wire::Writer out;
    wire::put_exchange_grant(out, {50'000, end});
    return std::vector<std::byte>(out.bytes().begin(), out.bytes().end());
  };
  using T = wire::FrameType;
  struct Wrong {
    T type;
    std::vector<std::byte> body;
    const char* text;
  };
  const Wrong wrong[] = {
      {T::kExchangeData, piece(50'000, 16, 16), "a piece that was not asked for"},
      {T::kExchangeData, piece(50'000, 0, 49'153), "a piece that was not asked for"},
      {T::kExchangeData, {}, "a piece that was not asked for"},
      {T::kExchangeGrant, grant(50'001), "a grant beyond the block"},
      {T::kExchangeGrant, {}, "a grant beyond the block"},
  };
  for (const Wrong& w : wrong) {
    Cluster c(ranks(2));
    const auto descriptor = wire::Descriptor{Kind::kAllToAll, 6, kNoMember, 50'000, ""};
    c.adjust = [&](Member, Post& post) {
      const auto memory = std::make_shared<std::vector<std::byte>>(50'000);
      const auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
      post.exchange->inputs[1] = post.exchange->outputs[1] = {region, 0, 50'000};
    };
    const auto run = c.call(0, descriptor, 1);
    wire::Descriptor posted = descriptor;
    posted.bytes = 0;
    inject(c, w.type, posted.hash(), w.body);
    ASSERT_TRUE(c.run([&] { return run->done(); }, kSecond)) << w.text;
    EXPECT_TRUE(has(run->status, w.text)) << run->status.message();
    EXPECT_TRUE(has(run->status, "rank 1 broke the protocol of operation 0"));
  }
  Cluster c(ranks(2));
  const auto run = c.barrier(0);
  inject(c, T::kExchangeData, wire::Descriptor{Kind::kBarrier, 0xff, kNoMember, 0, ""}.hash(),
         piece(1, 0, 1));
  ASSERT_TRUE(c.run([&] { return run->done(); }, kSecond));
  EXPECT_TRUE(has(run->status, "an exchange frame for an operation that is not an exchange"))
      << run->status.message();
}

TEST(Exchanges, MoreAheadThanIsAllowedIsAViolation) {
  Cluster c(ranks(2));
  const std::vector<std::byte> body(16u << 10);
  for (size_t i = 0; i <= EarlyFrames::kMostReductions / body.size(); i++) {
    inject(c, wire::FrameType::kExchangeData, 7, body);
    c.run_for(kMilli);
  }
  ASSERT_TRUE(c.group(0).core().failed());
  EXPECT_TRUE(has(c.group(0).core().failure(), "sent ahead"));
}

TEST(Exchanges, FrameAfterTheEndIsStale) {
  Cluster c(ranks(2));
  const Runs runs = exchange_all(c, Kind::kAllToAll, 0, 100, 1);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, kSecond));
  const uint64_t before = c.total(Counter::stale);
  inject(c, wire::FrameType::kExchangeData,
         wire::Descriptor{Kind::kAllToAll, 6, kNoMember, 0, ""}.hash(), {});
  c.run_for(kMilli);
  EXPECT_EQ(c.total(Counter::stale), before + 1);
  EXPECT_FALSE(c.group(0).core().failed());
}

}  // namespace
}  // namespace mcast::test
