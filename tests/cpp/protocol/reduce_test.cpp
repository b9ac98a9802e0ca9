// The machines of a reduce-scatter, cell by cell, and the pacer between the lanes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/reduce_kernels.h"
#include "base/rng.h"
#include "protocol/ingress_share.h"
#include "protocol/early_frames.h"
#include "protocol/reduce_owner.h"
#include "protocol/reduce_sender.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using Block = std::vector<std::byte>;

Block noise(size_t bytes, uint64_t seed) {
  Block block(bytes);
  Rng rng(seed);
  // Floats of moderate size, so that the order of additions shows.
  for (size_t i = 0; i + 4 <= bytes; i += 4) {
    const float value = static_cast<float>(rng.below(1'000'000)) / 977.0f - 400.0f;
    std::memcpy(block.data() + i, &value, 4);
  }
  return block;
}

struct Fold {
  ReduceShape shape;
  std::vector<Block> inputs;

  Fold(uint32_t members, Member self, size_t bytes, size_t segment, uint32_t window) {
    shape.members = members;
    shape.self = self;
    shape.bytes = bytes;
    shape.segment = segment;
    shape.window = window;
    for (uint32_t m = 0; m < members; m++) inputs.push_back(noise(bytes, m + 1));
  }

  ConstBytes part(Member m, uint32_t segment) const {
    const size_t at = segment * shape.segment;
    return ConstBytes(inputs[m]).subspan(at, std::min(shape.segment, shape.bytes - at));
  }

  Block reference() const {
    Block acc = inputs[0];
    const size_t count = shape.bytes / 4;
    for (uint32_t m = 1; m < shape.members; m++) {
      fold_next(shape.element, shape.reduction, 1, inputs[m].data(), acc.data(), count);
    }
    fold_finish(shape.element, shape.reduction, shape.members, acc.data(), acc.data(), count);
    return acc;
  }
};

TEST(ReduceOwner, AnyArrivalGivesTheBitsOfRankOrder) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const auto members = static_cast<uint32_t>(2 + rng.below(5));
    Fold f(members, static_cast<Member>(rng.below(members)), 4 * (1 + rng.below(3000)),
           64 * (1 + rng.below(20)), static_cast<uint32_t>(1 + rng.below(5)));
    BufferPool pool;
    const bool in_place = rng.chance(0.5);
    const Block want = f.reference();
    Block out(f.shape.bytes, std::byte{0x77});
    std::byte* to = in_place ? f.inputs[f.shape.self].data() : out.data();
    ReduceOwner owner(f.shape, f.inputs[f.shape.self].data(), to, pool);
    std::vector<uint32_t> sent(members);
    owner.grant(f.shape.window);
    while (!owner.complete()) {
      const auto m = static_cast<Member>(rng.below(members));
      if (m != f.shape.self && sent[m] < owner.granted()) {
        ASSERT_TRUE(owner.accept(m, sent[m], 1, f.part(m, sent[m])));
        sent[m]++;
      }
      if (rng.chance(0.3)) owner.grant(owner.folded() + f.shape.window);
      ASSERT_LE(owner.granted(), owner.folded() + f.shape.window);
      // What is said to be final is.
      ASSERT_EQ(std::memcmp(to, want.data(), owner.final_bytes()), 0) << seed;
    }
    EXPECT_EQ(owner.final_bytes(), f.shape.bytes);
  }
}

TEST(ReduceOwner, TakesOnlyWhatWasGrantedInOrderAndWhole) {
  Fold f(3, 1, 1000, 256, 2);
  BufferPool pool;
  Block out(1000);
  ReduceOwner owner(f.shape, f.inputs[1].data(), out.data(), pool);
  EXPECT_EQ(owner.segments(), 4u);
  EXPECT_FALSE(owner.accept(0, 0, 1, f.part(0, 0))) << "not granted";
  owner.grant(100);
  EXPECT_EQ(owner.granted(), 2u) << "the window bounds a grant";
  EXPECT_FALSE(owner.accept(0, 1, 1, f.part(0, 1))) << "not the next";
  EXPECT_FALSE(owner.accept(0, 0, 1, f.part(0, 0).first(255))) << "short";
  EXPECT_FALSE(owner.accept(1, 0, 1, f.part(1, 0))) << "our own";
  EXPECT_FALSE(owner.accept(3, 0, 1, f.part(0, 0))) << "no member";
  EXPECT_TRUE(owner.accept(0, 0, 1, f.part(0, 0)));
  EXPECT_FALSE(owner.accept(0, 0, 1, f.part(0, 0))) << "twice";
  EXPECT_EQ(owner.folded(), 0u);
  EXPECT_TRUE(owner.accept(2, 0, 1, f.part(2, 0)));
  EXPECT_EQ(owner.folded(), 1u);
  EXPECT_EQ(owner.final_bytes(), 256u);
}

TEST(ReduceOwner, WaitsForItsOwnStagedInput) {
  Fold f(2, 0, 512, 256, 2);
  f.shape.own_ready = 0;
  BufferPool pool;
  Block out(512);
  ReduceOwner owner(f.shape, f.inputs[0].data(), out.data(), pool);
  owner.grant(2);
  EXPECT_TRUE(owner.accept(1, 0, 1, f.part(1, 0)));
  EXPECT_TRUE(owner.accept(1, 1, 1, f.part(1, 1)));
  EXPECT_EQ(owner.folded(), 0u);
  owner.own_ready(300);
  EXPECT_EQ(owner.folded(), 1u);
  owner.own_ready(512);
  EXPECT_TRUE(owner.complete());
  EXPECT_EQ(out, f.reference());
}

TEST(ReduceOwner, AloneOrEmptyIsCompleteAtOnce) {
  Fold alone(1, 0, 1000, 256, 2);
  BufferPool pool;
  Block out(1000);
  ReduceOwner one(alone.shape, alone.inputs[0].data(), out.data(), pool);
  EXPECT_TRUE(one.complete());
  EXPECT_EQ(out, alone.inputs[0]);
  Fold empty(4, 2, 0, 256, 2);
  ReduceOwner none(empty.shape, nullptr, nullptr, pool);
  EXPECT_TRUE(none.complete());
}

TEST(ReduceOwner, StagingIsBoundedByTheWindow) {
  Fold f(4, 3, 64 * 256, 256, 3);
  BufferPool pool;
  Block out(f.shape.bytes);
  ReduceOwner owner(f.shape, f.inputs[3].data(), out.data(), pool);
  owner.grant(64);
  // Member 0 is late: all that the others may send is staged.
  for (const Member m : {Member{1}, Member{2}}) {
    uint32_t s = 0;
    while (owner.accept(m, s, 1, f.part(m, s))) s++;
    EXPECT_EQ(s, 3u);
  }
  EXPECT_EQ(owner.folded(), 0u);
}

TEST(ReduceSender, FeedsAllOwnersSegmentBySegment) {
  ReduceSender sender(1, {3, 3, 3, 2}, true);
  std::vector<std::pair<int, int>> order;
  while (const auto next = sender.next([](Member, uint32_t) { return true; })) {
    order.emplace_back(next->owner, next->segment);
    sender.sent(next->owner);
  }
  EXPECT_TRUE(sender.done());
  const std::vector<std::pair<int, int>> want = {{2, 0}, {3, 0}, {0, 0}, {2, 1},
                                                 {3, 1}, {0, 1}, {2, 2}, {0, 2}};
  EXPECT_EQ(order, want);
}

TEST(ReduceSender, AnOwnerThatGrantsNothingHoldsUpOnlyItself) {
  ReduceSender sender(0, {4, 4, 4}, false);
  const auto any = [](Member, uint32_t) { return true; };
  EXPECT_FALSE(sender.next(any));
  EXPECT_TRUE(sender.on_grant(2, 4));
  EXPECT_TRUE(sender.on_grant(2, 1)) << "an older grant is no news";
  EXPECT_FALSE(sender.on_grant(2, 5)) << "more than there is";
  EXPECT_FALSE(sender.on_grant(0, 1)) << "our own block";
  EXPECT_FALSE(sender.on_grant(9, 1)) << "no member";
  for (uint32_t s = 0; s < 4; s++) {
    const auto next = sender.next(any);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->owner, 2);
    EXPECT_EQ(next->segment, s);
    sender.sent(2);
  }
  EXPECT_FALSE(sender.next(any));
  EXPECT_FALSE(sender.done());
  EXPECT_TRUE(sender.on_grant(1, 4));
  EXPECT_FALSE(sender.next([](Member owner, uint32_t) { return owner != 1; }))
      << "its queue is full";
}

// Contributions of every size: what the account lets out, the store takes.
TEST(EarlyFrames, TakeWhatAnAccountLetsOut) {
  for (size_t payload = 1; payload <= 16384; payload = payload * 3 / 2 + 1) {
    UnaskedAccount account(2);
    EarlyFrames early(2);
    const std::vector<std::byte> body(wire::kReduceHead + payload);
    const size_t cost = early_cost(body.size());
    Sequence next = 0, released = 0;
    Rng rng(payload);
    for (int turn = 0; turn < 2000; turn++) {
      while (account.room(1, next, cost, next == released)) {
        account.charge(1, next, cost);
        wire::FrameHeader header;
        header.type = wire::FrameType::kReduceData;
        header.member = 0;
        header.sequence = next++;
        ASSERT_TRUE(early.keep(header, body)) << payload;
      }
      ASSERT_LE(early.held_reductions(0), UnaskedAccount::kMost + cost);
      // The other member makes some of the calls.
      for (uint64_t n = rng.below(20); n > 0 && released < next; n--) {
        ASSERT_EQ(early.take(released).size(), 1u);
        account.give_back(1, cost);
        released++;
      }
    }
    while (released < next) {
      (void)early.take(released++);
      account.give_back(1, cost);
    }
    EXPECT_EQ(early.held_reductions(0), 0u);
    EXPECT_EQ(account.charged(1), 0u);
  }
}

TEST(EarlyFrames, CountMembersApartAndFramesByWhatTheyTake) {
  EarlyFrames early(2);
  wire::FrameHeader header;
  header.type = wire::FrameType::kReduceData;
  size_t frames = 0;
  while (early.keep(header, {})) frames++;
  EXPECT_EQ(frames, EarlyFrames::kMostReductions / early_cost(0)) << "empty ones are not free";
  EXPECT_FALSE(early.keep(header, {}));
  header.type = wire::FrameType::kCredit;
  EXPECT_TRUE(early.keep(header, {})) << "what is in control of operations has room of its own";
  header.type = wire::FrameType::kReduceData;
  header.member = 1;
  EXPECT_TRUE(early.keep(header, {}));
  EXPECT_EQ(early.take(0).size(), frames + 2);
  EXPECT_EQ(early.held_reductions(0) + early.held_reductions(1), 0u);
  EXPECT_TRUE(early.take(0).empty());
}

TEST(UnaskedAccount, WhoFindsNoRoomIsNotOvertaken) {
  UnaskedAccount account(2);
  const size_t small = UnaskedAccount::kMost / 8, large = small * 2;
  for (Sequence s = 0; s < 8; s++) {
    ASSERT_TRUE(account.room(1, s, small, false));
    account.charge(1, s, small);
  }
  EXPECT_FALSE(account.room(1, 8, large, false));
  account.give_back(1, small);
  EXPECT_FALSE(account.room(1, 8, large, false));
  EXPECT_FALSE(account.room(1, 9, small, false)) << "it is not its turn";
  EXPECT_TRUE(account.room(0, 9, small, false)) << "of another owner";
  account.give_back(1, small);
  EXPECT_TRUE(account.room(1, 8, large, false));
  account.charge(1, 8, large);
  EXPECT_FALSE(account.room(1, 9, small, false));
  account.give_back(1, small);
  EXPECT_TRUE(account.room(1, 9, small, false));
}

// One that could not be read when its turn came finds the account full of later ones, none of which
// is released before it.
TEST(UnaskedAccount, TheOldestAlwaysHasRoom) {
  UnaskedAccount account(2);
  for (Sequence s = 1; account.room(1, s, 1000, false); s++) account.charge(1, s, 1000);
  EXPECT_FALSE(account.room(1, 0, 16384, false));
  EXPECT_TRUE(account.room(1, 0, 16384, true));
}

// A receiver behind a switch port of 125 MB/s that serves what is queued for it in proportion. The
// multicast lane offers `multicast` bytes per second and may have 1 MB in flight; the reduce lane
// asks for 25 KB at a time, at most 1 MB. The lanes' threads get their turns up to `late` apart,
// and see then what has arrived meanwhile. Returns the reduce lane's rate in the last half second.
double reduce_rate(LanePolicy policy, double multicast, Nanos late = 0) {
  Rng rng(1);
  Nanos turn_m = 0, turn_r = 0;
  double seen_m = 0;
  IngressShare share(policy);
  const Nanos step = 100 * kMicro;
  const double seconds = 1e-9 * static_cast<double>(step), room = 125e6 * seconds, piece = 25e3;
  double arrived_m = 0, arrived_r = 0, queue_m = 0, queue_r = 0, at_half = 0, asked = 0;
  for (Nanos now = 0; now < kSecond; now += step) {
    if (now == kSecond / 2) at_half = arrived_r;
    queue_m = std::min(queue_m + multicast * seconds, 1e6);
    const double served = std::min(1.0, room / std::max(1.0, queue_m + queue_r));
    arrived_m += queue_m * served;
    arrived_r += queue_r * served;
    queue_m -= queue_m * served;
    queue_r -= queue_r * served;
    if (now >= turn_m) {
      seen_m = arrived_m;
      turn_m = now + static_cast<Nanos>(rng.below(static_cast<uint64_t>(late) + 1));
    }
    if (now < turn_r) continue;
    turn_r = now + static_cast<Nanos>(rng.below(static_cast<uint64_t>(late) + 1));
    share.update(static_cast<uint64_t>(seen_m), now);
    const double window = static_cast<double>(share.window(40)) * piece;
    while (asked - arrived_r + piece <= window) {
      asked += piece;
      queue_r += piece;
    }
  }
  return (arrived_r - at_half) * 2;
}

TEST(IngressShare, LeavesTheReduceLaneAloneWithoutMulticast) {
  EXPECT_GT(reduce_rate(LanePolicy::kFair, 0), 120e6);
  EXPECT_GT(reduce_rate(LanePolicy::kGather, 0), 120e6);
  IngressShare share(LanePolicy::kGather);
  for (Nanos now = 0; now < kSecond; now += kMilli) {
    share.update(0, now);
    EXPECT_FALSE(share.pacing());
    EXPECT_EQ(share.window(16), 16u);
  }
}

TEST(IngressShare, GivesWhatMulticastLeaves) {
  const double rate = reduce_rate(LanePolicy::kGather, 40e6);
  EXPECT_GT(rate, 70e6);
  EXPECT_LT(rate, 95e6);
}

TEST(IngressShare, PoliciesDifferWhereBothWantTheWholeLink) {
  for (const Nanos late : {Nanos{0}, 2 * kMilli}) {
    const double fair = reduce_rate(LanePolicy::kFair, 125e6, late);
    const double gather = reduce_rate(LanePolicy::kGather, 125e6, late);
    EXPECT_GT(fair, 40e6) << late;
    EXPECT_GT(fair, 2.5 * gather) << late;
    EXPECT_GT(gather, 5e6) << "never starved";
  }
}

TEST(IngressShare, EndsSoonAfterTheLastByteOfMulticast) {
  IngressShare share(LanePolicy::kGather);
  Nanos now = 0;
  for (uint64_t i = 1; i <= 100; i++, now += 2 * kMilli) share.update(i * 250'000, now);
  ASSERT_TRUE(share.pacing());
  EXPECT_EQ(share.window(16), 2u);
  EXPECT_EQ(share.window(4), 1u) << "never nothing";
  for (int i = 0; i < 13; i++) share.update(100 * 250'000, now += 3 * kMilli);
  EXPECT_FALSE(share.pacing());
  EXPECT_EQ(share.window(16), 16u);
}

}  // namespace
}  // namespace mcast::test
