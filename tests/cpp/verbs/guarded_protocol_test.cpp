// Whole groups over verbs on the device in memory, in all three modes, in virtual time: schedules
// with losses by seed, every byte checked; and guarded groups under attack.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "support/cluster.h"
#include "support/seeds.h"
#include "transport/some_identity.h"
#include "transport/transport_fixture.h"
#include "verbs/verbs_world.h"
#include "wire/guarded_datagram.h"

namespace mcast::testing {
namespace {

using crypto::Mode;
using test::Cluster;
using test::OpRun;
using OpRuns = std::vector<std::shared_ptr<OpRun>>;

class VerbsModes : public ::testing::TestWithParam<Mode> {
 protected:
  static bool guarded() { return GetParam() != Mode::kOff; }

  void make(uint32_t ranks) {
    test::ClusterOptions options;
    options.ranks = ranks;
    options.security = GetParam();
    options.group.tag = 99;
    options.group.agreed.chunk = 1024;
    options.group.agreed.budget = 1 << 20;
    options.group.agreed.batch = 8 * 1024;
    options.group.agreed.eager = 8 * 1024;
    options.accounts = [](Member) {
      LaneAccounts accounts;
      accounts.watch = true;
      return accounts;
    };
    options.transport = [this] {
      // Keys that a few dozen records use up.
      crypto::EpochLimits limits;
      limits.packets = 30;
      if (guarded()) world.options.identity = some_identity(GetParam(), 1, limits);
      return world.make();
    };
    // Also captures the probes that make the group.
    world.fake->on_datagram = [this](std::vector<std::byte>& bytes) {
      captured.push_back({bytes.begin() + verbs::kGrh, bytes.end()});
      return true;
    };
    cluster = std::make_unique<Cluster>(options);
    world.fake->on_datagram = [this](std::vector<std::byte>&) { return !rng.chance(rate); };
  }
  void check(const OpRuns& ops) {
    ASSERT_TRUE(cluster->run(
        [&] { return std::all_of(ops.begin(), ops.end(), [](auto& o) { return o->done(); }); }));
    for (const auto& op : ops) {
      EXPECT_TRUE(op->status.ok()) << op->status.to_string();
      EXPECT_EQ(op->check(cluster->size()), "");
      EXPECT_EQ(op->calls, 1);
    }
  }
  // One operation, chosen by its number.
  OpRuns post(uint64_t id) {
    Rng choice(id);
    const auto root = static_cast<Member>(choice.below(cluster->size()));
    const size_t bytes = size_t{1} << choice.below(18);
    constexpr wire::Kind kinds[] = {wire::Kind::kReduceScatter, wire::Kind::kAllreduce,
                                    wire::Kind::kReduce};
    const uint64_t what = choice.below(8);
    OpRuns ops;
    for (Member r = 0; r < cluster->size(); r++) {
      if (what < 2) {
        ops.push_back(cluster->broadcast(r, root, bytes, id));
      } else if (what < 4) {
        ops.push_back(cluster->allgather(r, bytes, id));
      } else if (what < 6) {
        const wire::Kind kind = kinds[id % 3];
        ops.push_back(cluster->reduction(r, kind, kind == wire::Kind::kReduce ? root : kNoMember,
                                         bytes + 64, id));
      } else if (what < 7) {
        ops.push_back(cluster->exchange(r, wire::Kind::kAllToAll, kNoMember, bytes, id));
      } else {
        ops.push_back(cluster->barrier(r));
      }
    }
    return ops;
  }
  void schedule(uint64_t seed, size_t operations) {
    OpRuns all;
    for (uint64_t i = 0; i < operations; i++) {
      const OpRuns ops = post(seed * 1000 + i);
      all.insert(all.end(), ops.begin(), ops.end());
    }
    check(all);
  }
  OpRuns broadcast(Member root, size_t bytes, uint64_t id) {
    OpRuns ops;
    for (Member r = 0; r < cluster->size(); r++) {
      ops.push_back(cluster->broadcast(r, root, bytes, id));
    }
    return ops;
  }
  uint64_t refused(Cause cause) const {
    uint64_t sum = 0;
    for (Member r = 0; r < cluster->size(); r++) sum += cluster->lane(r).monitor().count(cause);
    return sum;
  }

  FakeVerbsWorld world;
  Rng rng{1};
  double rate = 0;
  std::vector<std::vector<std::byte>> captured;
  std::unique_ptr<Cluster> cluster;
};

INSTANTIATE_TEST_SUITE_P(Modes, VerbsModes,
                         ::testing::Values(Mode::kOff, Mode::kAuth, Mode::kSealed),
                         [](const auto& p) { return crypto::mode_name(p.param); });

TEST_P(VerbsModes, SchedulesAreExactWhateverIsLost) {
  const auto one = [this](uint64_t seed) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    cluster.reset();
    make(static_cast<uint32_t>(2 + seed % 4));
    rng = Rng(seed);
    rate = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 0.02 : 0.15;
    schedule(seed, 12);
    EXPECT_EQ(refused(Cause::forged) + refused(Cause::forged_header) + refused(Cause::malformed),
              0u);
  };
  one(2724122663);  // a datagram is repeated after its operation's revival
  for (const uint64_t seed : test::seeds(6)) one(seed);
}

// A guarded group registers no memory for peers, so repairs go by frames.
TEST_P(VerbsModes, LargeBlocksAreRepairedByReadsOnlyWithoutAGuard) {
  make(3);
  rate = 0.05;
  check(broadcast(0, 777777, 1));
  check(broadcast(1, verbs::kGatherFrom, 2));
  const Cluster& c = *cluster;
  if (guarded()) {
    EXPECT_EQ(c.total(Counter::repair_reads) + c.total(Counter::fetch_grants_sent), 0u);
    EXPECT_EQ(c.total(Counter::gathered_datagrams), 0u);
    EXPECT_GT(c.total(Counter::repair_chunks_sent), 0u);
    EXPECT_EQ(world.fake->remote_registrations_ever, 0u);
  } else {
    EXPECT_GT(c.total(Counter::repair_reads), 0u);
    EXPECT_GT(c.total(Counter::gathered_datagrams), 0u);
    EXPECT_GT(world.fake->remote_registrations_ever, 0u);
    EXPECT_EQ(c.total(Counter::repair_chunks_sent), 0u);
  }
}

TEST_P(VerbsModes, OnlySealedIsUnreadableOnTheWay) {
  make(3);
  Buffer capture;
  const auto keep = [&capture](const std::vector<std::byte>& bytes) {
    capture.insert(capture.end(), bytes.begin(), bytes.end());
  };
  world.fake->on_datagram = [&](std::vector<std::byte>& bytes) {
    keep(bytes);
    return rng.chance(0.9);  // so that some data goes by frames
  };
  world.fake->on_message = [&](std::vector<std::byte>& bytes, uint32_t) {
    keep(bytes);
    return true;
  };
  constexpr size_t kBytes = 60000;
  Buffer tensor(kBytes);
  sim::fill_pattern(9, 0, tensor);
  check(broadcast(0, kBytes, 9));
  size_t seen = 0;
  for (size_t from = 0; from + 16 <= kBytes; from += 1000) {
    seen += std::search(capture.begin(), capture.end(), tensor.begin() + from,
                        tensor.begin() + from + 16) != capture.end();
  }
  if (GetParam() == Mode::kSealed) {
    EXPECT_EQ(seen, 0u);
  } else {
    EXPECT_GT(seen, 50u);
  }
}

// Datagrams that are changed, truncated, repeated or forged change no byte of a result, and are
// counted under their cause and source.
TEST_P(VerbsModes, ForgedDatagramsAreCountedUnderTheirCause) {
  if (!guarded()) return;
  make(3);
  FakeVerbs& fake = *world.fake;
  uint64_t count = 0;
  fake.on_datagram = [&](std::vector<std::byte>& bytes) {
    if (captured.size() < 2000) captured.push_back({bytes.begin() + verbs::kGrh, bytes.end()});
    switch (count++ % 40) {
      case 5:  // of the payload
        bytes[verbs::kGrh + wire::kGuardedHeader] ^= std::byte{1};
        break;
      case 12:  // of the header
        bytes[verbs::kGrh + 20] ^= std::byte{1};
        break;
      case 19:
        bytes.resize(verbs::kGrh + wire::kGuardedHeader - 1);
        break;
      case 26:
        bytes.pop_back();
        break;
      case 33:
        return false;
      default:
        break;
    }
    return true;
  };
  check(broadcast(0, 300001, 1));
  check(broadcast(2, 300001, 2));
  EXPECT_GT(refused(Cause::forged), 0u);
  EXPECT_GT(refused(Cause::forged_header), 0u);
  EXPECT_GT(refused(Cause::malformed), 0u);
  // Everything is repeated from another host, also to the senders.
  fake.on_datagram = nullptr;
  const uint64_t before = cluster->total(Counter::stale) + cluster->total(Counter::own_echo);
  const uint64_t placed = cluster->total(Counter::chunks_placed);
  for (const auto& datagram : captured) fake.inject_namesake(datagram);
  cluster->run_for(100 * kMilli);
  EXPECT_GT(cluster->total(Counter::stale) + cluster->total(Counter::own_echo), before);
  EXPECT_EQ(cluster->total(Counter::chunks_placed), placed);
  EXPECT_GT(refused(Cause::replayed), 0u);
  bool named = false;
  for (Member r = 0; r < cluster->size(); r++) {
    for (const auto& row : cluster->lane(r).monitor().top(8)) {
      named = named || row.source.address == IpAddress::v4(0x7f000101);
    }
  }
  EXPECT_TRUE(named) << "127.0.1.1, which the routing header says";
  check(broadcast(1, 100000, 3));
}

// A changed record ends the group on all members with an error that names the peer.
TEST_P(VerbsModes, AChangedRecordEndsTheGroupByName) {
  if (!guarded()) return;
  make(3);
  check(broadcast(0, 100, 1));
  bool done = false;
  world.fake->on_message = [&done](std::vector<std::byte>& bytes, uint32_t) {
    if (!done && bytes.size() > 5000) {
      done = true;
      bytes[1000] ^= std::byte{1};
    }
    return true;
  };
  OpRuns ops;
  for (Member r = 0; r < 3; r++) {
    ops.push_back(cluster->reduction(r, wire::Kind::kAllreduce, kNoMember, 600000, 2));
  }
  ASSERT_TRUE(cluster->run(
      [&] { return std::all_of(ops.begin(), ops.end(), [](auto& o) { return o->done(); }); }));
  EXPECT_TRUE(done);
  size_t said = 0;
  for (const auto& op : ops) {
    EXPECT_EQ(op->status.code(), Code::kPeerLost) << op->status.to_string();
    said += op->status.message().find("a record that cannot be verified") != std::string::npos;
  }
  EXPECT_GT(said, 0u);
  EXPECT_EQ(refused(Cause::forged), 1u);
}

}  // namespace
}  // namespace mcast::testing
