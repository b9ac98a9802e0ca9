// Datagrams between members with real keys. Nonces never repeat, epochs advance under loss, and
// datagrams that are forged, changed, replayed or from another lane, rail, epoch or group are
// refused with their cause.
#include "crypto/datagram_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "crypto/bytes.h"
#include "crypto/library.h"
#include "support/admit.h"

namespace mcast::crypto {
namespace {

using Datagram_ = std::vector<std::byte>;

Key some_root(unsigned seed) {
  return derive_key(root_key(std::vector<std::byte>(16, static_cast<std::byte>(seed))), "test");
}

wire::DatagramHeader data_of(Member member, Chunk chunk = 0, uint8_t lane = 0) {
  wire::DatagramHeader header;
  header.lane = lane;
  header.group_tag = 0xabcdef;
  header.sequence = 3;
  header.chunk = chunk;
  header.member = member;
  return header;
}

class Guards : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override { ASSERT_TRUE(load_library().ok()); }

  DatagramGuard::Params params(Member self, uint8_t lane = 0) const {
    DatagramGuard::Params p;
    p.how = {GetParam(), Suite::kAes128Gcm, lane};
    p.self = self;
    p.members = 4;
    p.most_payload = 2000;
    p.epochs = epochs_;
    p.opens = opens_;
    return p;
  }
  std::unique_ptr<DatagramGuard> guard(Member self, unsigned root = 1, uint8_t lane = 0) {
    auto made = DatagramGuard::make(some_root(root), params(self, lane), budget_);
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  }
  static Datagram_ sealed(DatagramGuard& by, const wire::DatagramHeader& header,
                          size_t bytes = 100) {
    Datagram_ payload(bytes, std::byte{0x42});
    Datagram_ out(bytes + wire::kGuardedHeader + wire::kDatagramTag);
    EXPECT_EQ(by.seal_key().seal(out, header, payload), out.size());
    return out;
  }
  static DatagramVerdict take(DatagramGuard& at, const Datagram_& datagram, Nanos now = 0) {
    wire::GuardedHeader header;
    const DatagramVerdict admitted = test::admit(at, datagram, header, now);
    if (admitted != DatagramVerdict::kVerified) return admitted;
    ConstBytes payload;
    const DatagramVerdict opened = at.open(header, datagram, payload, now);
    if (opened == DatagramVerdict::kVerified) {
      for (const std::byte b : payload) EXPECT_EQ(b, std::byte{0x42});
    }
    return opened;
  }

  EpochLimits epochs_;
  OpenLimits opens_;
  std::shared_ptr<OpenBudget> budget_ = std::make_shared<OpenBudget>();
};
INSTANTIATE_TEST_SUITE_P(Modes, Guards, ::testing::Values(Mode::kAuth, Mode::kSealed),
                         [](const auto& p) { return mode_name(p.param); });

// Attack 1 of the design: the same chunk again, whatever its memory contains by then.
TEST_P(Guards, ARepetitionTakesANewNumber) {
  epochs_.packets = 5;
  auto one = guard(1);
  std::set<uint64_t> numbers;
  std::set<std::string> bodies;
  for (int i = 0; i < 23; i++) {
    const Datagram_ d = sealed(*one, data_of(1, 7));
    numbers.insert(wire::load<uint64_t>(d.data() + 32));
    bodies.insert(hex(ConstBytes(d).subspan(40)));
  }
  EXPECT_EQ(numbers.size(), 23u);
  EXPECT_EQ(bodies.size(), 23u);
  EXPECT_EQ(one->seal_key().epoch(), 4u);
  EXPECT_EQ(one->seal_key().sealed(), 23u);
}

TEST_P(Guards, SealedBytesAreNotInClear) {
  auto one = guard(1);
  const Datagram_ d = sealed(*one, data_of(1), 64);
  const bool clear = hex(d).find(hex(Datagram_(16, std::byte{0x42}))) != std::string::npos;
  EXPECT_EQ(clear, GetParam() == Mode::kAuth);
}

TEST_P(Guards, PayloadsOfAnySizeAndPlace) {
  auto one = guard(1), two = guard(2);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{1999}, size_t{2000}}) {
    EXPECT_EQ(take(*two, sealed(*one, data_of(1), size)), DatagramVerdict::kVerified) << size;
    Datagram_ out(size + wire::kGuardedHeader + wire::kDatagramTag, std::byte{0x42});
    const ConstBytes place = ConstBytes(out).subspan(wire::kGuardedHeader, size);
    ASSERT_EQ(one->seal_key().seal(out, data_of(1), place), out.size());
    EXPECT_EQ(take(*two, out), DatagramVerdict::kVerified) << "in place, " << size;
  }
  EXPECT_EQ(take(*two, sealed(*one, data_of(1), 2001)), DatagramVerdict::kMalformed)
      << "beyond the scratch";
  EXPECT_EQ(two->opened(), 12u);
}

TEST_P(Guards, EveryFlippedBitAndEveryCutIsRefused) {
  auto one = guard(1), two = guard(2);
  const Datagram_ good = sealed(*one, data_of(1), 33);
  std::set<DatagramVerdict> seen;
  for (size_t bit = 0; bit < good.size() * 8; bit++) {
    Datagram_ bad = good;
    bad[bit / 8] ^= std::byte{1} << bit % 8;
    const DatagramVerdict r = take(*two, bad);
    EXPECT_NE(r, DatagramVerdict::kVerified) << bit;
    if (bit / 8 >= wire::kGuardedHeader) {
      EXPECT_TRUE(r == DatagramVerdict::kForged || r == DatagramVerdict::kCrowdedOut)
          << verdict_name(r);
    }
    seen.insert(r);
  }
  for (size_t size = 0; size < good.size(); size++) {
    const DatagramVerdict r =
        take(*two, Datagram_(good.begin(), good.begin() + static_cast<long>(size)), kSecond);
    EXPECT_NE(r, DatagramVerdict::kVerified) << size;
  }
  EXPECT_THAT(seen,
              ::testing::IsSupersetOf({DatagramVerdict::kMalformed, DatagramVerdict::kDowngraded,
                                       DatagramVerdict::kForeign, DatagramVerdict::kForgedHeader,
                                       DatagramVerdict::kForged}));
  EXPECT_EQ(two->opened(), 0u);
  EXPECT_EQ(take(*two, good, 2 * kSecond), DatagramVerdict::kVerified)
      << "and the good one still is";
}

// Attack 3: authentic datagrams in a wrong place.
TEST_P(Guards, AnotherLaneGroupMemberOrModeIsRefused) {
  auto one = guard(1), two = guard(2), other_group = guard(1, 2), other_lane = guard(1, 1, 1);
  EXPECT_EQ(take(*two, sealed(*other_group, data_of(1))), DatagramVerdict::kForgedHeader);
  EXPECT_EQ(take(*two, sealed(*other_lane, data_of(1, 0, 1))), DatagramVerdict::kForeign);
  // With the lane's bit restored it is refused too, since each lane has its own filter keys.
  EXPECT_EQ(take(*two, sealed(*other_lane, data_of(1, 0, 0))), DatagramVerdict::kForgedHeader);
  EXPECT_EQ(take(*one, sealed(*one, data_of(1))), DatagramVerdict::kOwn);
  // A member that claims to be another: all members share the header's key, but not the tag's.
  EXPECT_EQ(take(*two, sealed(*one, data_of(3))), DatagramVerdict::kForged);
  EXPECT_EQ(take(*two, sealed(*one, data_of(4))), DatagramVerdict::kMalformed);
  Datagram_ old(64);
  wire::write_datagram(old, data_of(1), ConstBytes(old).subspan(32, 32));
  EXPECT_EQ(take(*two, old), DatagramVerdict::kDowngraded) << "version 1";
  DatagramGuard::Params other = params(1);
  other.how.mode = GetParam() == Mode::kAuth ? Mode::kSealed : Mode::kAuth;
  const auto other_mode = DatagramGuard::make(some_root(1), other, budget_);
  ASSERT_TRUE(other_mode.ok());
  EXPECT_EQ(take(*two, sealed(**other_mode, data_of(1))), DatagramVerdict::kDowngraded);
}

TEST_P(Guards, ControlIsTakenOnceInAnyOrderWithinTheWindow) {
  auto one = guard(1), two = guard(2);
  auto position = data_of(1);
  position.type = wire::DatagramType::kPosition;
  std::vector<Datagram_> sent;
  const size_t count = 2 + ReplayWindow::kNumbers;
  for (size_t i = 0; i < count; i++) sent.push_back(sealed(*one, position, 0));
  // A busy host or network reorders datagrams; this must not count as a replay.
  for (const size_t i : {1, 0, 3, 2})
    EXPECT_EQ(take(*two, sent[i]), DatagramVerdict::kVerified) << i;
  for (const size_t i : {1, 0, 3, 2})
    EXPECT_EQ(take(*two, sent[i]), DatagramVerdict::kReplayed) << i;
  for (size_t i = 5; i < count; i++)
    EXPECT_EQ(take(*two, sent[i]), DatagramVerdict::kVerified) << i;
  // Four to thirteen are remembered at first, then only the last sixteen.
  EXPECT_EQ(take(*two, sent[4]), DatagramVerdict::kVerified)
      << "not seen, and newer than what is forgotten";
  for (size_t i = 0; i < count; i++)
    EXPECT_EQ(take(*two, sent[i]), DatagramVerdict::kReplayed) << i;
  // Data is checked by the group's bitmap of placed chunks instead.
  const Datagram_ data = sealed(*one, data_of(1));
  EXPECT_EQ(take(*two, data), DatagramVerdict::kVerified);
  EXPECT_EQ(take(*two, data), DatagramVerdict::kVerified);
}

// Attack 2: a true header with other bytes, before the true datagram.
TEST_P(Guards, ATrueHeaderWithOtherBytesDoesNoHarm) {
  auto one = guard(1), two = guard(2);
  const Datagram_ good = sealed(*one, data_of(1));
  Datagram_ bad = good;
  std::fill(bad.begin() + 60, bad.end(), std::byte{9});
  for (int i = 0; i < 20; i++) EXPECT_EQ(take(*two, bad), DatagramVerdict::kForged);
  EXPECT_EQ(take(*two, good), DatagramVerdict::kVerified);
}

TEST_P(Guards, BeyondTheBudgetEachNumberIsTriedOnce) {
  BudgetLimits few;
  few.bytes = 5000;
  budget_ = std::make_shared<OpenBudget>(few);
  auto one = guard(1), two = guard(2);
  std::vector<Datagram_> good;
  for (int i = 0; i < 40; i++) good.push_back(sealed(*one, data_of(1, static_cast<Chunk>(i))));
  Datagram_ bad = good[0];
  bad.back() ^= std::byte{1};
  std::map<DatagramVerdict, int> seen;
  for (int i = 0; i < 100; i++) seen[take(*two, bad, 5)]++;
  EXPECT_EQ(seen[DatagramVerdict::kForged], 6);  // five in 5,000 bytes (1,180 each), one beyond
  EXPECT_EQ(seen[DatagramVerdict::kCrowdedOut], 94);
  EXPECT_EQ(budget_->refused(), 94u);
  // True datagrams still pass, except those that share a slot with a number that was tried.
  int taken = 0;
  for (size_t i = 1; i < good.size(); i++)
    taken += take(*two, good[i], 5) == DatagramVerdict::kVerified;
  EXPECT_GE(taken, 37);
  EXPECT_EQ(take(*two, good[0], 5), DatagramVerdict::kCrowdedOut)
      << "that one is repaired by stream";
  EXPECT_EQ(take(*two, good[0], 20 * kMilli), DatagramVerdict::kVerified)
      << "or comes in another window";
}

// For an epoch in which nothing has been opened yet, keys must be derived first; so only few are
// tried.
TEST_P(Guards, ALaterEpochCostsTheBudgetMore) {
  epochs_.packets = 1;
  auto one = guard(1), two = guard(2);
  std::vector<Datagram_> all;
  for (int i = 0; i < 40; i++) all.push_back(sealed(*one, data_of(1, static_cast<Chunk>(i))));
  const auto tried = [&](Datagram_ bad, Nanos now) {
    bad.back() ^= std::byte{1};
    int forged = 0;
    for (int i = 0; i < 300; i++) forged += take(*two, bad, now) == DatagramVerdict::kForged;
    return forged;
  };
  const int now_open = tried(all[0], kSecond), later = tried(all[38], 2 * kSecond);
  EXPECT_GT(now_open, 200);
  EXPECT_GE(later, 1);
  EXPECT_LE(later, 2);
  EXPECT_EQ(take(*two, all[39], 2 * kSecond), DatagramVerdict::kVerified)
      << "a true one still gets in";
}

TEST_P(Guards, EpochsGoOnUnderLoss) {
  epochs_.packets = 3;
  opens_.ahead = 4;
  auto one = guard(1), two = guard(2);
  Rng rng(1);
  int opened = 0;
  for (int i = 0; i < 600; i++) {
    const Datagram_ d = sealed(*one, data_of(1, static_cast<Chunk>(i)));
    if (!rng.chance(0.3)) opened += take(*two, d) == DatagramVerdict::kVerified;
  }
  EXPECT_GT(opened, 380);
  EXPECT_GE(two->epoch_of(1), 197u);
  // A sender that was not received for more epochs than a receiver follows stays refused; its data
  // is repaired by stream.
  for (int i = 0; i < 30; i++) sealed(*one, data_of(1));
  EXPECT_EQ(take(*two, sealed(*one, data_of(1))), DatagramVerdict::kStale);
}

TEST_P(Guards, TheEpochBeforeIsOpenedForAWhile) {
  epochs_.packets = 2;
  auto one = guard(1), two = guard(2);
  std::vector<Datagram_> all;
  for (int i = 0; i < 6; i++) all.push_back(sealed(*one, data_of(1, static_cast<Chunk>(i))));
  EXPECT_EQ(take(*two, all[2], kSecond), DatagramVerdict::kVerified);
  EXPECT_EQ(take(*two, all[1], kSecond), DatagramVerdict::kVerified) << "late, of the epoch before";
  EXPECT_EQ(take(*two, all[0], 62 * kSecond), DatagramVerdict::kStale) << "too late";
  EXPECT_EQ(take(*two, all[4], 62 * kSecond), DatagramVerdict::kVerified);
  EXPECT_EQ(take(*two, all[3], 62 * kSecond), DatagramVerdict::kVerified);
  EXPECT_EQ(take(*two, all[1], 62 * kSecond), DatagramVerdict::kStale) << "two epochs ago";
}

// The root would allow deriving the keys of past epochs.
TEST_P(Guards, TheGroupsRootIsNotKept) {
  epochs_.packets = 2;
  Key root = some_root(1);
  auto one = DatagramGuard::make(root, params(1), budget_);
  auto two = DatagramGuard::make(root, params(2), budget_);
  auto three = DatagramGuard::make(root, params(3), budget_);
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  wipe(root.place());
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ(take(**two, sealed(**one, data_of(1))), DatagramVerdict::kVerified) << i;
  }
  EXPECT_EQ(take(**two, sealed(**three, data_of(3))), DatagramVerdict::kVerified)
      << "first heard now";
  EXPECT_EQ((*two)->epoch_of(1), 2u);
  EXPECT_EQ((*two)->epoch_of(2), 0u) << "of itself";
}

TEST_P(Guards, AForgedEpochMovesNothing) {
  auto one = guard(1), two = guard(2);
  // Another member knows the filter's key, so it can make the header, but not the tag.
  Datagram_ forged = sealed(*one, data_of(1));
  wire::store<uint64_t>(forged.data() + 32, wire::packet_number(9, 1));
  const FilterKey key = filter_key(some_root(1), 0);
  wire::store<uint32_t>(forged.data(),
                        static_cast<uint32_t>(siphash13(key, ConstBytes(forged).subspan(4, 36))));
  EXPECT_EQ(take(*two, forged), DatagramVerdict::kForged);
  EXPECT_EQ(two->epoch_of(1), 0u);
  EXPECT_EQ(take(*two, sealed(*one, data_of(1))), DatagramVerdict::kVerified);
}

TEST_P(Guards, EndsOfKeys) {
  epochs_.packets = 2;
  epochs_.epochs = 3;
  auto one = guard(1);
  Datagram_ out(100), payload(20);
  for (int i = 0; i < 6; i++) EXPECT_GT(one->seal_key().seal(out, data_of(1), payload), 0u);
  EXPECT_EQ(one->seal_key().seal(out, data_of(1), payload), 0u);
  EXPECT_EQ(one->seal_key().seal(out, data_of(1), payload), 0u);
  EXPECT_EQ(one->seal_key().failure().code(), Code::kResourceExhausted);
  EXPECT_THAT(one->seal_key().failure().message(), ::testing::HasSubstr("all 3 epochs"));

  epochs_ = {};
  epochs_.blocks = 20;  // 1,040 bytes and the header count for 69
  auto blocks = guard(1);
  Datagram_ large(1040), room(1100);
  for (int i = 0; i < 3; i++) EXPECT_GT(blocks->seal_key().seal(room, data_of(1), large), 0u);
  EXPECT_EQ(blocks->seal_key().epoch(), 3u) << "each begins one";
}

// Applies to a sender of little traffic too: a leaked key opens at most an hour of it.
TEST_P(Guards, EpochsEndAfterAnHour) {
  auto one = guard(1), two = guard(2);
  SealKey& key = one->seal_key();
  key.age(100 * kSecond);
  EXPECT_EQ(take(*two, sealed(*one, data_of(1))), DatagramVerdict::kVerified);
  key.age(3699 * kSecond);
  EXPECT_EQ(take(*two, sealed(*one, data_of(1))), DatagramVerdict::kVerified);
  EXPECT_EQ(key.epoch(), 0u);
  key.age(3700 * kSecond);
  EXPECT_EQ(take(*two, sealed(*one, data_of(1)), 3700 * kSecond), DatagramVerdict::kVerified);
  EXPECT_EQ(key.epoch(), 1u);
  EXPECT_EQ(two->epoch_of(1), 1u);
  // Several hours without a datagram advance the epoch only once.
  key.age(100'000 * kSecond);
  EXPECT_EQ(take(*two, sealed(*one, data_of(1)), 100'000 * kSecond), DatagramVerdict::kVerified);
  EXPECT_EQ(key.epoch(), 2u);
  EXPECT_EQ(take(*two, sealed(*one, data_of(1)), 100'000 * kSecond), DatagramVerdict::kVerified);
  EXPECT_EQ(key.epoch(), 2u);
}

TEST_P(Guards, KeysAreWornOutByForgeries) {
  opens_.failures = 10;
  auto one = guard(1), two = guard(2);
  Datagram_ bad = sealed(*one, data_of(1));
  bad.back() ^= std::byte{1};
  for (int i = 0; i < 9; i++) take(*two, bad, i * kSecond);
  EXPECT_EQ(two->worn_out(), kNoMember);
  take(*two, bad, 10 * kSecond);
  EXPECT_EQ(two->worn_out(), 1);
}

TEST(Budget, CountsWindowsNotHistory) {
  BudgetLimits limits;
  limits.bytes = 4000;
  OpenBudget budget(limits);
  for (int window = 0; window < 5; window++) {
    const Nanos now = window * limits.window;
    for (int i = 0; i < 2; i++) {
      EXPECT_TRUE(budget.allows(1, 7, now));
      budget.failed(1000, now);
    }
    EXPECT_TRUE(budget.allows(1, 7, now)) << "once more, beyond it";
    EXPECT_FALSE(budget.allows(1, 7, now));
    EXPECT_TRUE(budget.allows(1, 8, now)) << "another number";
    EXPECT_TRUE(budget.allows(2, 7, now)) << "another sender";
  }
  EXPECT_EQ(budget.refused(), 5u);
}

// Otherwise a forger could find, in advance, numbers that share a slot with true ones.
TEST(Budget, WhichNumbersShareAPlaceFollowsFromAKey) {
  BudgetLimits limits;
  limits.bytes = 1;
  const auto shares = [&](const FilterKey& key, uint64_t number) {
    OpenBudget budget(limits, key);
    budget.failed(1000, 0);
    EXPECT_TRUE(budget.allows(1, 0, 0));
    return !budget.allows(1, number, 0);
  };
  const FilterKey one{std::byte{1}}, other{std::byte{2}};
  uint64_t found = 0;
  for (uint64_t number = 1; found < 4 && number < 100'000; number++) {
    if (!shares(one, number)) continue;
    found++;
    EXPECT_FALSE(shares(other, number)) << number;
  }
  EXPECT_EQ(found, 4u);
}

}  // namespace
}  // namespace mcast::crypto
