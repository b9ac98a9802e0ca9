// An insider has all keys of its group. It makes datagrams in the name of another root, and changes
// data that it forwards by repair or along the ring. Without source_auth its bytes are delivered as
// that root's, which shows that the attacks work. With it no rank accepts them, and the error names
// the root.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "support/errors.h"
#include "support/program.h"
#include "wire/guarded_datagram.h"

namespace mcast::test {
namespace {

using crypto::Mode;
using Captured = std::vector<std::byte>;

// The insider repairs rank 1's losses, and forwards to rank 3 on the ring.
constexpr Member kRoot = 0, kAsker = 1, kInsider = 2;
constexpr uint32_t kRanks = 4;
constexpr Nanos kLimit = 2 * kSecond;

struct Call {
  const char* name;
  wire::Kind kind;
  size_t bytes;
  bool small;
};
constexpr Call kLarge[] = {{"Broadcast", wire::Kind::kBroadcast, 300001, false},
                           {"AllGather", wire::Kind::kAllgather, 200003, false},
                           {"AllReduce", wire::Kind::kAllreduce, 400000, false}};
constexpr Call kSmall[] = {{"SmallBroadcast", wire::Kind::kBroadcast, 1000, true},
                           {"SmallAllGather", wire::Kind::kAllgather, 1000, true},
                           {"SmallAllReduce", wire::Kind::kAllreduce, 2000, true}};

using Case = std::tuple<Mode, Call>;

std::string name_of(const testing::TestParamInfo<Case>& p) {
  return std::string(crypto::mode_name(std::get<0>(p.param))) + std::get<1>(p.param).name;
}

class SourceAuthTest : public testing::TestWithParam<Case> {
 protected:
  static ClusterOptions options(bool on, bool ring = false) {
    ClusterOptions o = ranks(kRanks, ring);
    o.security = std::get<0>(GetParam());
    o.epochs.packets = 1 << 20;  // the insider's numbers stay in the root's epoch
    o.group.agreed.source_auth = on;
    o.net.seed = 5;
    return o;
  }
  static const Call& what() { return std::get<1>(GetParam()); }
  static std::shared_ptr<OpRun> post(Cluster& c, Member rank) {
    const Call& call = what();
    if (call.kind == wire::Kind::kBroadcast) return c.broadcast(rank, kRoot, call.bytes, 1, kLimit);
    if (call.kind == wire::Kind::kAllgather) return c.allgather(rank, call.bytes, 1, kLimit);
    return c.reduction(rank, call.kind, 0xffff, call.bytes, 1, kLimit);
  }
  static Runs run_all(Cluster& c) {
    Runs runs;
    for (Member r = 0; r < c.size(); r++) runs.push_back(post(c, r));
    EXPECT_TRUE(c.run([&] { return all_done(runs); })) << "hangs";
    return runs;
  }
  static size_t wrong(const Runs& runs) {
    return static_cast<size_t>(std::count_if(runs.begin(), runs.end(), [](const auto& r) {
      return r->status.ok() && !r->check(kRanks).empty();
    }));
  }
  // No rank has accepted a wrong byte, and failed ranks name the block's root. Returns the number
  // of failed ranks.
  static size_t failed_by_name(const Runs& runs, ErrorId id, const Fields& fields) {
    EXPECT_EQ(wrong(runs), 0u);
    size_t failed = 0;
    for (const auto& run : runs) {
      if (run->status.ok()) continue;
      failed++;
      EXPECT_TRUE(is_error(run->status, id, fields)) << run->rank;
    }
    return failed;
  }
  static size_t found(Cluster& c, const Runs& runs) {
    EXPECT_GT(c.total(Counter::blocks_forged), 0u);
    return failed_by_name(runs, ErrorId::block_forged,
                          {{"root", "0"}, {"sequence", "0"}, {"group", "job"}});
  }
};

// A chunk 0 made by the insider arrives ahead of the root's chunk 0.
void forge_datagrams(Cluster& c, Mode mode) {
  const GroupParams& params = c.group(kInsider).core().params();
  auto made = crypto::SealKey::make(c.datagram_root(kInsider, params.tag),
                                    {mode, crypto::Suite::kAes128Gcm, params.lane}, kRoot, {});
  ASSERT_TRUE(made.ok());
  auto key = std::make_shared<crypto::SealKey>(std::move(made).value());
  c.net().set_datagram_hook([&c, key](size_t from, size_t to, ConstBytes d) {
    wire::GuardedHeader h;
    if (from == to || wire::parse_guarded(d, h) != wire::ParseError::kNone ||
        h.inner.type != wire::DatagramType::kData || h.inner.member != kRoot ||
        h.inner.chunk != 0) {
      return SimNetwork::Verdict::kPass;
    }
    const Captured payload(d.size() - wire::kGuardedHeader - wire::kDatagramTag, std::byte{0x11});
    Captured forged(d.size());
    EXPECT_EQ(key->seal(forged, h.inner, payload), forged.size());
    c.net().inject(to, forged, kInsider);
    return SimNetwork::Verdict::kPass;
  });
}

// Changes the root's block in frames of this type that the insider forwards. Their body begins with
// the root's number; `head` is the offset of the block's bytes.
void change_frames(Cluster& c, wire::FrameType type, size_t head) {
  c.net().set_frame_hook([type, head](size_t from, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (from != kInsider || !wire::parse_frame(frame, h) || h.type != type ||
        wire::load<uint16_t>(&frame[wire::kFrameHeader]) != kRoot) {
      return true;
    }
    // The insider's own memory, before it is sealed.
    const Bytes own(const_cast<std::byte*>(frame.data()), frame.size());
    own[wire::kFrameHeader + head] ^= std::byte{1};
    const ConstBytes body[] = {own.subspan(wire::kFrameHeader)};
    wire::write_frame_header(own.data(), h, body);
    return true;
  });
}

void withhold_digests(Cluster& c) {
  c.net().set_frame_hook([](size_t from, size_t, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    return from != kRoot || !wire::parse_frame(frame, h) || h.type != wire::FrameType::kBlockDigest;
  });
}

const auto kModes = testing::Values(Mode::kAuth, Mode::kSealed);

class ForgedDatagrams : public SourceAuthTest {};
INSTANTIATE_TEST_SUITE_P(Large, ForgedDatagrams,
                         testing::Combine(kModes, testing::ValuesIn(kLarge)), name_of);
INSTANTIATE_TEST_SUITE_P(Small, ForgedDatagrams,
                         testing::Combine(kModes, testing::ValuesIn(kSmall)), name_of);

TEST_P(ForgedDatagrams, AreDeliveredWithoutSourceAuth) {
  Cluster c(options(false));
  forge_datagrams(c, std::get<0>(GetParam()));
  EXPECT_EQ(wrong(run_all(c)), kRanks - 1);
}

TEST_P(ForgedDatagrams, EndTheOperationByName) {
  Cluster c(options(true));
  forge_datagrams(c, std::get<0>(GetParam()));
  // A small operation has ended at its root by then.
  EXPECT_GE(found(c, run_all(c)), what().small ? kRanks - 1 : kRanks);
}

class ForgedRepairs : public SourceAuthTest {
 protected:
  static Runs attack(Cluster& c) {
    change_frames(c, wire::FrameType::kFetchData, wire::kFetchDataHead);
    c.net().set_datagram_hook([](size_t, size_t to, ConstBytes d) {
      wire::GuardedHeader h;
      const bool lost = to == kAsker && wire::parse_guarded(d, h) == wire::ParseError::kNone &&
                        h.inner.type == wire::DatagramType::kData && h.inner.member == kRoot &&
                        h.inner.chunk == 3;
      return lost ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
    });
    return run_all(c);
  }
};
INSTANTIATE_TEST_SUITE_P(Large, ForgedRepairs, testing::Combine(kModes, testing::ValuesIn(kLarge)),
                         name_of);

TEST_P(ForgedRepairs, AreDeliveredWithoutSourceAuth) {
  Cluster c(options(false));
  EXPECT_EQ(wrong(attack(c)), 1u);
}

TEST_P(ForgedRepairs, EndTheOperationByName) {
  Cluster c(options(true));
  EXPECT_EQ(found(c, attack(c)), kRanks);
}

class ForgedRing : public SourceAuthTest {};
INSTANTIATE_TEST_SUITE_P(Large, ForgedRing, testing::Combine(kModes, testing::ValuesIn(kLarge)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Small, ForgedRing, testing::Combine(kModes, testing::ValuesIn(kSmall)),
                         name_of);

TEST_P(ForgedRing, IsDeliveredWithoutSourceAuth) {
  Cluster c(options(false, true));
  change_frames(c, wire::FrameType::kRingData, 10);
  EXPECT_EQ(wrong(run_all(c)), 1u);
}

TEST_P(ForgedRing, EndsTheOperationByName) {
  Cluster c(options(true, true));
  change_frames(c, wire::FrameType::kRingData, 10);
  const Runs runs = run_all(c);
  EXPECT_GE(found(c, runs), 1u);
  EXPECT_FALSE(runs[kInsider + 1]->status.ok());
}

class Digests : public SourceAuthTest {};
INSTANTIATE_TEST_SUITE_P(Large, Digests, testing::Combine(kModes, testing::ValuesIn(kLarge)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Small, Digests, testing::Combine(kModes, testing::ValuesIn(kSmall)),
                         name_of);

TEST_P(Digests, AreComparedOnceForEachBlockAndReceiver) {
  for (const bool ring : {false, true}) {
    SCOPED_TRACE(ring);
    Cluster c(options(true, ring));
    const Runs runs = run_all(c);
    expect_good(runs, kRanks);
    const uint64_t roots = what().kind == wire::Kind::kBroadcast ? 1 : kRanks;
    EXPECT_EQ(c.total(Counter::blocks_verified), roots * (kRanks - 1));
    EXPECT_EQ(c.total(Counter::blocks_forged), 0u);
    EXPECT_EQ(c.total(Counter::malformed), 0u);
  }
}

// Either the root or the receivers call it first, so that either's limit passes first.
TEST_P(Digests, WithheldOnesAreNamedAtTheLimit) {
  for (const bool root_first : {false, true}) {
    for (const bool ring : {false, true}) {
      SCOPED_TRACE(std::string(root_first ? "root first" : "root last") + (ring ? ", ring" : ""));
      Cluster c(options(true, ring));
      withhold_digests(c);
      const Nanos later = c.now() + kLimit / 2;
      Runs runs(kRanks);
      for (Member r = 0; r < kRanks; r++) {
        const bool first = (r == kRoot) == root_first;
        c.at(first ? c.now() : later, [&c, &runs, r] { runs[r] = post(c, r); });
      }
      const auto done = [&] {
        return std::all_of(runs.begin(), runs.end(), [](const auto& r) { return r && r->done(); });
      };
      ASSERT_TRUE(c.run(done, 2 * kLimit)) << "hangs";
      const size_t failed = failed_by_name(runs, ErrorId::digest_late,
                                           {{"ranks", "0"}, {"sequence", "0"}, {"group", "job"}});
      EXPECT_GE(failed, kRanks - 1);
      EXPECT_LE(c.now(), later + kLimit + kSecond);
    }
  }
}

TEST_P(Digests, SecondOnesMisfitsAndUnaskedOnesAreMalformed) {
  Cluster c(options(true));
  const Runs runs = run_all(c);
  expect_good(runs, kRanks);
  Cluster off(options(false));
  const auto send = [](Cluster& to, size_t bytes, Sequence sequence) {
    const GroupParams& params = to.group(kRoot).core().params();
    const Captured body(bytes);
    Captured frame(wire::kFrameHeader + bytes);
    std::copy(body.begin(), body.end(), frame.begin() + wire::kFrameHeader);
    const Plan plan = make_plan({wire::Kind::kBroadcast, 6, kRoot, 300001, ""}, params.agreed);
    const ConstBytes parts[] = {body};
    wire::write_frame_header(
        frame.data(),
        {wire::FrameType::kBlockDigest, params.lane, kRoot, params.tag, sequence, plan.hash},
        parts);
    to.net().inject_frame(kRoot, kAsker, Channel::kControl, frame);
    to.run_for(kMilli);
  };
  const auto malformed = [](Cluster& of) {
    return of.group(kAsker).counters().get(Counter::malformed);
  };
  // Rank 1 has called it; the root has not.
  const Sequence next = c.group(kAsker).core().next_sequence();
  auto run = c.broadcast(kAsker, kRoot, 300001, 2, kLimit);
  send(c, 31, next);
  EXPECT_EQ(malformed(c), 1u);
  send(c, 32, next);
  EXPECT_EQ(malformed(c), 1u) << "what it says is seen when the block is here";
  send(c, 32, next);
  EXPECT_EQ(malformed(c), 2u) << "a root says it once";
  auto other = off.broadcast(kAsker, kRoot, 300001, 2, kLimit);
  send(off, 32, 0);
  EXPECT_EQ(malformed(off), 1u) << "nobody asked for it";
}

}  // namespace
}  // namespace mcast::test
