// Streams of guarded clusters with real handshakes and records, and keys that change after a few of
// them. An attacker on the path changes, truncates, duplicates, delays, moves and reflects records,
// and forges ends. A peer with another secret, or without a guard, is refused. Results are exact to
// the byte; each failure ends by name on all ranks, and is counted with its source.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "crypto/library.h"
#include "sim/network/sim_identity.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using crypto::Mode;
using sim::Frame;
using testing::HasSubstr;

// May change a record; returns whether it is delivered.
using Attack = std::function<bool(size_t from, size_t to, Channel channel, Frame& record)>;

class StreamAttacks : public testing::TestWithParam<Mode> {
 protected:
  ClusterOptions options(uint32_t ranks = 4) const {
    ClusterOptions o;
    o.ranks = ranks;
    o.security = GetParam();
    o.net.seed = 5;
    o.epochs.packets = 16;
    o.group.lane = 1;
    o.accounts = [](Member) {
      LaneAccounts accounts;
      accounts.watch = true;
      return accounts;
    };
    return o;
  }
  static Runs reductions(Cluster& c, uint64_t id = 0) {
    Runs runs;
    for (uint64_t i = 1; i <= 3; i++) {
      for (Member m = 0; m < c.size(); m++) {
        runs.push_back(c.reduction(m, wire::Kind::kAllreduce, 0, 400'000, id + i));
      }
    }
    return runs;
  }
  static sim::GuardTotals totals(Cluster& c, Member m) {
    return static_cast<SimTransport&>(c.lane(m).transport()).guarded()->totals();
  }
  static uint64_t refused(Cluster& c, Cause cause) {
    uint64_t sum = 0;
    for (Member m = 0; m < c.size(); m++) sum += c.lane(m).monitor().count(cause);
    return sum;
  }
  static bool is_record(const Frame& message) {
    return message.sign == Frame::Sign::kBytes && message.size() > crypto::kRecordLength &&
           wire::load<uint32_t>(message.data()) == message.size() - crypto::kRecordLength;
  }
  // `attack` gets the records of rank 1 for rank 0, from the `skip`-th on.
  static void attack_records(Cluster& c, size_t skip, Attack attack) {
    auto left = std::make_shared<size_t>(skip);
    c.net().set_record_hook([=](size_t from, size_t to, Channel channel, Frame& message) {
      if (from != 1 || to != 0 || channel != Channel::kReduce || !is_record(message)) return true;
      if (*left > 0) return --*left, true;
      return attack(from, to, channel, message);
    });
  }
  // Runs reductions that `attack` ends: every rank names the cause, and soon.
  void expect_end(const Attack& attack, Cause cause, const std::string& text) const {
    Cluster c(options());
    attack_records(c, 5, attack);
    Runs runs = reductions(c);
    const Nanos begin = c.now();
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
    EXPECT_LT(c.now() - begin, 20 * kSecond);
    std::string all;
    size_t failed = 0;
    for (const auto& run : runs) {
      if (run->status.ok()) {
        EXPECT_EQ(run->check(c.size()), "");
        continue;
      }
      failed++;
      all += run->status.message() + "\n";
    }
    EXPECT_GE(failed, c.size());
    EXPECT_THAT(all, HasSubstr(text));
    EXPECT_EQ(c.lane(0).monitor().count(cause), 1u);
    const auto sources = c.lane(0).monitor().top(4);
    ASSERT_FALSE(sources.empty());
    EXPECT_EQ(sources[0].source.host_text(), "10.0.0.2");
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, StreamAttacks, testing::Values(Mode::kAuth, Mode::kSealed),
                         [](const auto& p) { return crypto::mode_name(p.param); });

constexpr const char* kDoesNotOpen = "a record that cannot be verified";

TEST_P(StreamAttacks, KeysGoOnUnderLoad) {
  ClusterOptions o = options();
  o.net.stream_rate = 1e8;
  o.epochs.packets = 6;
  Cluster c(o);
  Runs runs = reductions(c);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 120 * kSecond));
  expect_good(runs, c.size());
  for (Member m = 0; m < c.size(); m++) {
    EXPECT_GT(totals(c, m).epochs, 2u) << m;
    EXPECT_EQ(totals(c, m).record_bytes, totals(c, m).records * 20);
  }
  for (const Cause cause : {Cause::forged, Cause::malformed, Cause::hello_refused}) {
    EXPECT_EQ(refused(c, cause), 0u) << cause_name(cause);
  }
}

TEST_P(StreamAttacks, EpochsEndByName) {
  ClusterOptions o = options();
  o.epochs.packets = 4;
  o.epochs.epochs = 3;
  o.group.multicast.wanted = false;
  Cluster c(o);
  Runs runs = reductions(c);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 120 * kSecond));
  std::string all;
  for (const auto& run : runs) all += run->status.message() + "\n";
  EXPECT_THAT(all, HasSubstr("are used up"));
}

TEST_P(StreamAttacks, AChangedRecordEndsTheConnection) {
  for (const size_t at : {size_t{4}, size_t{20}, size_t{40}, SIZE_MAX}) {
    SCOPED_TRACE(at);
    expect_end(
        [at](size_t, size_t, Channel, Frame& record) {
          record[std::min(at, record.size() - 1)] ^= std::byte{4};
          return true;
        },
        Cause::forged, kDoesNotOpen);
  }
}

TEST_P(StreamAttacks, ALengthThatCannotBeEndsTheConnection) {
  expect_end(
      [](size_t, size_t, Channel, Frame& record) {
        record[3] = std::byte{0xff};
        return true;
      },
      Cause::malformed, "sent a frame of");
}

TEST_P(StreamAttacks, ACutOrLongerRecordEndsTheConnection) {
  for (const int by : {-1, -16, 1}) {
    SCOPED_TRACE(by);
    expect_end(
        [by](size_t, size_t, Channel, Frame& record) {
          record.resize(record.size() + static_cast<size_t>(by));
          return true;
        },
        Cause::forged, kDoesNotOpen);
  }
}

TEST_P(StreamAttacks, ARecordThatIsLeftOutEndsTheConnection) {
  auto once = std::make_shared<bool>(true);
  expect_end([once](size_t, size_t, Channel, Frame&) { return !std::exchange(*once, false); },
             Cause::forged, kDoesNotOpen);
}

TEST_P(StreamAttacks, RecordsThatChangePlacesEndTheConnection) {
  auto held = std::make_shared<Frame>();
  expect_end(
      [held](size_t, size_t, Channel, Frame& record) {
        if (!held->empty()) return true;
        *held = record;
        return false;
      },
      Cause::forged, kDoesNotOpen);
}

TEST_P(StreamAttacks, AReplayedOrReflectedRecordEndsTheConnection) {
  for (const bool reflected : {false, true}) {
    Cluster c(options());
    attack_records(c, 5, [&](size_t from, size_t to, Channel channel, Frame& record) {
      reflected ? c.net().inject_record(to, from, channel, record)
                : c.net().inject_record(from, to, channel, record);
      return true;
    });
    Runs runs = reductions(c);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
    std::string all;
    for (const auto& run : runs) all += run->status.message() + "\n";
    EXPECT_THAT(all, HasSubstr(kDoesNotOpen));
    EXPECT_EQ(c.lane(reflected ? 1 : 0).monitor().count(Cause::forged), 1u);
  }
}

// In the middle of frames, by an attacker who can make a FIN, but no record.
TEST_P(StreamAttacks, AForgedEndIsALostPeer) {
  Cluster c(options());
  Runs runs = reductions(c);
  c.run_for(2 * kMilli);
  c.net().goodbye(1);
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
  std::string all;
  for (const auto& run : runs) all += run->status.message() + "\n";
  EXPECT_THAT(all, HasSubstr("closed its connection without a goodbye"));
}

// The same end with goodbyes is orderly.
TEST_P(StreamAttacks, AnEndInOrderIsNoLoss) {
  Cluster c(options(3));
  Runs runs;
  for (Member m = 0; m < 3; m++) runs.push_back(c.reduction(m, wire::Kind::kAllreduce, 0, 4000, 1));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  expect_good(runs, 3);
  c.run_for(kSecond);
  c.pause(2, true);
  EXPECT_TRUE(c.lane(2).transport().stream().close_peers(c.now()));
  c.run_for(kSecond);
  for (Member m = 0; m < 2; m++) runs.push_back(c.barrier(m, 5 * kSecond));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  for (size_t i = 3; i < runs.size(); i++) {
    EXPECT_THAT(runs[i]->status.message(), testing::Not(HasSubstr("without a goodbye")));
    EXPECT_THAT(runs[i]->status.message(), testing::Not(HasSubstr("reset by peer")));
  }
}

TEST_P(StreamAttacks, ACaptureHoldsContributionsOnlyInClear) {
  Cluster c(options(2));
  std::vector<Frame> capture;
  c.net().set_record_hook([&](size_t, size_t, Channel, Frame& message) {
    capture.push_back(message);
    return true;
  });
  Runs runs;
  for (Member m = 0; m < 2; m++) {
    runs.push_back(c.reduction(m, wire::Kind::kReduceScatter, 0, 20'000, 9));
  }
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  expect_good(runs, 2);
  std::vector<std::byte> input(40'000);
  std::set<std::string> pieces;
  for (Member m = 0; m < 2; m++) {
    sim::fill_pattern(9, m, input);
    for (size_t at = 0; at + 16 <= input.size(); at++) {
      pieces.emplace(reinterpret_cast<const char*>(&input[at]), 16);
    }
  }
  size_t found = 0;
  for (const Frame& message : capture) {
    for (size_t at = 0; at + 16 <= message.size(); at++) {
      found += pieces.count(std::string(reinterpret_cast<const char*>(&message[at]), 16));
    }
  }
  EXPECT_EQ(found > 0, GetParam() == Mode::kAuth) << found;
}

// ---- handshakes ----

// Changes each byte of each of the four messages once: a changed one is never accepted, and no end
// waits forever.
TEST_P(StreamAttacks, AChangedHandshakeIsRefusedOrNamed) {
  const std::pair<size_t, size_t> messages[] = {{crypto::kChallengeSize, 5},
                                                {crypto::kGuardedHelloSize, 11},
                                                {crypto::kGuardedAckSize, 5},
                                                {crypto::kConfirmSize, 5}};
  std::set<Cause> counted;
  size_t good = 0, named = 0;
  for (const auto& [size, step] : messages) {
    for (size_t at = 0; at < size; at += step) {
      SCOPED_TRACE(std::to_string(at) + " of " + std::to_string(size));
      bool done = false;
      ClusterOptions o = options(2);
      o.prepare = [&, size = size](SimNetwork& net) {
        net.set_record_hook([&, size](size_t, size_t, Channel, Frame& message) {
          if (done || message.size() != size || is_record(message)) return true;
          message[at] ^= std::byte{1};
          return done = true;
        });
      };
      Cluster c(o);
      Runs runs;
      for (Member m = 0; m < 2; m++) {
        runs.push_back(c.reduction(m, wire::Kind::kAllreduce, 0, 40'000, 1));
      }
      ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
      EXPECT_TRUE(done);
      if (refused(c, Cause::hello_refused) > 0) counted.insert(Cause::hello_refused);
      const bool all =
          std::all_of(runs.begin(), runs.end(), [](auto& r) { return r->status.ok(); });
      good += all;
      named += !all;
      // A peer that is refused before it has proved anything tries again; after that, the refusal
      // is final.
      if (size == crypto::kGuardedHelloSize) {
        EXPECT_TRUE(all);
        EXPECT_EQ(refused(c, Cause::hello_refused), 1u);
      } else if (size != crypto::kChallengeSize) {
        EXPECT_FALSE(all);
      }
      if (all) expect_good(runs, 2);
    }
  }
  EXPECT_EQ(counted.size(), 1u);
  EXPECT_GT(good, 0u);
  EXPECT_GT(named, 0u);
}

// A Hello is valid for one Challenge only.
TEST_P(StreamAttacks, AHelloOfBeforeIsRefused) {
  ClusterOptions o = options(2);
  Frame first;
  size_t replaced = 0;
  o.prepare = [&](SimNetwork& net) {
    net.set_record_hook([&](size_t from, size_t, Channel, Frame& message) {
      if (from != 1 || message.size() != crypto::kGuardedHelloSize || is_record(message)) {
        return true;
      }
      if (first.empty()) {
        first = message;
      } else if (replaced < 2) {
        replaced++;
        std::copy(first.begin(), first.end(), message.begin());
      }
      return true;
    });
  };
  Cluster c(o);
  Runs runs;
  for (Member m = 0; m < 2; m++) {
    runs.push_back(c.reduction(m, wire::Kind::kAllreduce, 0, 40'000, 1));
  }
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
  expect_good(runs, 2);
  if (replaced > 0) {
    EXPECT_EQ(c.lane(0).monitor().count(Cause::hello_refused), replaced);
  }
}

TEST_P(StreamAttacks, AnotherSecretEndsTheGroupByName) {
  ClusterOptions o = options(4);
  o.secret = [](Member m) { return m == 2 ? 2 : 1; };
  o.group.liveness_limit = 5 * kSecond;
  Cluster c(o);
  Runs runs;
  const Nanos begin = c.now();
  for (Member m = 0; m < 4; m++) runs.push_back(c.barrier(m));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, 60 * kSecond));
  EXPECT_LT(c.now() - begin, 20 * kSecond);
  std::string all;
  for (const auto& run : runs) {
    EXPECT_FALSE(run->status.ok()) << run->rank;
    all += run->status.message() + "\n";
  }
  EXPECT_THAT(all, HasSubstr("cannot connect to peer sim:"));
  EXPECT_GT(refused(c, Cause::hello_refused), 0u);
}

// ---- two endpoints ----

struct Heard final : StreamSink {
  void on_frame(PeerId, Channel, ConstBytes f) override { frames.emplace_back(f.begin(), f.end()); }
  void on_peer_down(PeerId, const Status& why, bool) override { downs.push_back(why.message()); }
  void on_refused(Cause cause, Source) override { causes.push_back(cause); }
  std::vector<std::vector<std::byte>> frames;
  std::vector<std::string> downs;
  std::vector<Cause> causes;
};

class GuardedPair : public testing::Test {
 protected:
  std::unique_ptr<SimTransport> make(Mode mode, uint64_t secret = 1,
                                     crypto::Suite suite = crypto::Suite::kAes128Gcm) {
    EXPECT_TRUE(crypto::load_library().ok());
    auto endpoint = net_.attach();
    if (mode == Mode::kOff) return endpoint;
    sim::IdentitySpec spec;
    spec.mode = mode;
    spec.suite = suite;
    spec.seed = endpoint->index();
    endpoint->guard({sim::seeded_identity(*sim::seeded_secret(secret).value(), spec).value()});
    return endpoint;
  }
  // Sends a frame from the first to the second endpoint and records the outcome.
  void send(Transport& a, Transport& b, StreamAddress at) {
    const std::vector<std::byte> frame(50);
    const ConstBytes parts[] = {frame};
    a.stream().send(a.stream().add_peer(at), Channel::kControl, parts);
    const Nanos end = net_.now() + 10 * kSecond;
    for (Nanos now = net_.now(); now < end; now += 10 * kMilli) {
      net_.advance(now);
      a.stream().poll(first_, now);
      b.stream().poll(other_, now);
    }
  }
  SimNetwork net_{{}};
  Heard first_, other_;
};

TEST_F(GuardedPair, AnUnguardedEndpointIsNamed) {
  auto a = make(Mode::kSealed), b = make(Mode::kOff);
  Transport& to = *b;
  send(*a, to, to.stream().address(false));
  ASSERT_EQ(first_.downs.size(), 1u);
  EXPECT_THAT(first_.downs[0], HasSubstr("is its security off?"));
  EXPECT_TRUE(other_.frames.empty());
}

TEST_F(GuardedPair, UnguardedPeerGetsNoConnection) {
  auto a = make(Mode::kOff), b = make(Mode::kSealed);
  Transport& to = *b;
  send(*a, to, to.stream().address(false));
  EXPECT_EQ(first_.downs.size(), 1u);
  EXPECT_TRUE(other_.frames.empty());
  EXPECT_EQ(other_.causes, std::vector{Cause::hello_refused});
}

TEST_F(GuardedPair, AnotherModeOrSuiteIsNamed) {
  auto a = make(Mode::kSealed), b = make(Mode::kAuth);
  Transport& to = *b;
  send(*a, to, to.stream().address(false));
  auto c = make(Mode::kAuth, 1, crypto::Suite::kChaCha20Poly1305);
  send(*c, to, to.stream().address(false));
  ASSERT_EQ(first_.downs.size(), 2u);
  EXPECT_THAT(first_.downs[0], HasSubstr("its security setting differs from ours"));
  EXPECT_THAT(first_.downs[1], HasSubstr("no cipher that both ends support"));
}

TEST_F(GuardedPair, TheKeyOfTheRecordIsTheOnlyOne) {
  auto a = make(Mode::kSealed), b = make(Mode::kSealed), c = make(Mode::kSealed);
  Transport& to = *b;
  StreamAddress wrong = to.stream().address(false);
  wrong.key = static_cast<Transport&>(*c).stream().address(false).key;
  send(*a, to, wrong);
  ASSERT_EQ(first_.downs.size(), 1u);
  EXPECT_THAT(first_.downs[0], HasSubstr("its proof is wrong"));
}

TEST_F(GuardedPair, AnAggregatorsSecretIsNoRanks) {
  auto a = make(Mode::kSealed);
  auto b = net_.attach();
  sim::IdentitySpec spec;
  spec.role = crypto::Role::kAggregator;
  spec.seed = 99;
  const auto secret = sim::seeded_secret(1, crypto::Role::kAggregator).value();
  sim::GuardOptions options{sim::seeded_identity(*secret, spec).value()};
  options.answer = 2 * kSecond;
  b->guard(options);
  Transport& rank = *a;
  // The rank was not told of the aggregator.
  Transport& station = *b;
  send(station, rank, rank.stream().address(false));
  EXPECT_FALSE(first_.downs.empty());
  EXPECT_FALSE(other_.causes.empty());
  EXPECT_TRUE(other_.frames.empty());
}

}  // namespace
}  // namespace mcast::test
