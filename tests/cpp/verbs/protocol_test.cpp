// The protocol over verbs on the device in memory, in virtual time: losses by seed, repairs by RDMA
// Read, every byte checked.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "support/cluster.h"
#include "support/seeds.h"
#include "transport/interceptor.h"
#include "verbs/verbs_world.h"
#include "wire/datagram.h"

namespace mcast::testing {
namespace {

using test::Cluster;
using test::ClusterOptions;
using test::OpRun;

struct Lossy {
  FakeVerbsWorld world;
  Rng rng{1};
  double rate = 0;
  std::unique_ptr<Cluster> cluster;

  explicit Lossy(uint32_t ranks, const std::string& faults = "") {
    ClusterOptions options;
    options.ranks = ranks;
    options.group.tag = 99;
    options.group.agreed.chunk = 1024;
    options.group.agreed.budget = 1 << 20;
    options.group.agreed.batch = 8 * 1024;
    options.group.agreed.eager = 8 * 1024;
    options.transport = [this, faults] {
      auto wrapped = intercept(world.make(), faults, nullptr);
      EXPECT_TRUE(wrapped.ok());
      return std::move(wrapped).value();
    };
    cluster = std::make_unique<Cluster>(options);
    world.fake->on_datagram = [this](std::vector<std::byte>&) { return !rng.chance(rate); };
  }

  void check(const std::vector<std::shared_ptr<OpRun>>& ops) {
    ASSERT_TRUE(cluster->run(
        [&] { return std::all_of(ops.begin(), ops.end(), [](auto& o) { return o->done(); }); }));
    for (const auto& op : ops) {
      EXPECT_TRUE(op->status.ok()) << op->status.to_string();
      EXPECT_EQ(op->check(cluster->size()), "");
      EXPECT_EQ(op->calls, 1);
    }
  }
  std::vector<std::shared_ptr<OpRun>> broadcast(Member root, size_t bytes, uint64_t id) {
    std::vector<std::shared_ptr<OpRun>> ops;
    for (Member r = 0; r < cluster->size(); r++) {
      ops.push_back(cluster->broadcast(r, root, bytes, id));
    }
    return ops;
  }
  std::vector<std::shared_ptr<OpRun>> allgather(size_t bytes, uint64_t id) {
    std::vector<std::shared_ptr<OpRun>> ops;
    for (Member r = 0; r < cluster->size(); r++) ops.push_back(cluster->allgather(r, bytes, id));
    return ops;
  }
};

TEST(VerbsProtocol, NothingIsRepairedWithoutLoss) {
  Lossy job(3);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{100000}, size_t{1} << 20}) {
    job.check(job.broadcast(1, size, 2 * size + 1));
    job.check(job.allgather(size, 2 * size + 2));
  }
  EXPECT_EQ(job.cluster->total(Counter::repair_reads), 0u);
  EXPECT_GT(job.cluster->total(Counter::chunks_placed), 4000u);
}

TEST(VerbsProtocol, LargeBlocksAreGatheredSmallOnesCopied) {
  for (const double rate : {0.0, 0.05}) {
    Lossy job(3);
    job.rate = rate;
    const Cluster& c = *job.cluster;
    job.check(job.broadcast(0, 6000, 1));                    // kept for repair
    job.check(job.broadcast(0, verbs::kGatherFrom - 1, 2));  // not worth a registration
    EXPECT_EQ(c.total(Counter::gathered_datagrams), 0u);
    job.check(job.broadcast(1, verbs::kGatherFrom, 3));
    EXPECT_GE(c.total(Counter::gathered_datagrams), verbs::kGatherFrom / 1024);
    EXPECT_EQ(c.total(Counter::corrupt), 0u);
    job.cluster->run_for(kSecond);
    const size_t registered = job.world.fake->registrations();
    const uint64_t before = c.total(Counter::gathered_datagrams);
    job.check(job.allgather(verbs::kGatherPiece + 5001, 4));
    EXPECT_GE(c.total(Counter::gathered_datagrams) - before, 3 * (verbs::kGatherPiece / 1024));
    job.cluster->run_for(kSecond);
    // With losses there are additional connections and read grants.
    if (rate == 0) {
      EXPECT_EQ(job.world.fake->registrations(), registered) << "they end with the operation";
    }
  }
}

TEST(VerbsProtocol, AllReducesAreGatheredAsTheyBecomeFinal) {
  Lossy job(3);
  std::vector<std::shared_ptr<OpRun>> ops;
  for (Member r = 0; r < 3; r++) {
    ops.push_back(
        job.cluster->reduction(r, wire::Kind::kAllreduce, kNoMember, 3 * verbs::kGatherFrom, 1));
  }
  job.check(ops);
  EXPECT_GE(job.cluster->total(Counter::gathered_datagrams), 3 * verbs::kGatherFrom / 1024);
}

TEST(VerbsProtocol, FaultRulesSeeWholeDatagramsSoThatNothingIsGathered) {
  Lossy job(3, "corrupt:rate=0.01,seed=3,dir=out");
  job.check(job.broadcast(1, verbs::kGatherFrom, 1));
  EXPECT_EQ(job.cluster->total(Counter::gathered_datagrams), 0u);
}

TEST(VerbsProtocol, LossesOfLargeOperationsAreReadFromTheDonorsMemory) {
  for (const double rate : {0.001, 0.01, 0.05, 0.2}) {
    for (const uint64_t seed : test::seeds(3)) {
      SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
      Lossy job(4);
      job.rng = Rng(seed);
      job.rate = rate;
      job.check(job.broadcast(2, 777777, 10 + seed));
      job.check(job.allgather(200000, 20 + seed));
      const Cluster& c = *job.cluster;
      EXPECT_EQ(c.total(Counter::repair_chunks_sent), 0u) << "no donor sent the bytes itself";
      EXPECT_EQ(c.total(Counter::malformed) + c.total(Counter::corrupt), 0u);
      if (rate >= 0.01) {
        EXPECT_GT(c.total(Counter::repair_reads), 0u) << rate << " " << seed;
        EXPECT_GT(c.total(Counter::repair_read_bytes), 0u);
        EXPECT_GT(c.total(Counter::fetch_grants_sent), 0u);
      }
      uint64_t read = 0;
      for (Member r = 0; r < c.size(); r++) {
        for (const auto& [from, to] : job.cluster->group(r).core().repairs()) read += from;
      }
      EXPECT_EQ(read, c.total(Counter::repair_read_bytes)) << "accounted per peer";
    }
  }
}

TEST(VerbsProtocol, DonorsLetGoOfTheirMemoryWhenTheOperationEnds) {
  Lossy job(4);
  job.rate = 0.05;
  job.check(job.broadcast(2, verbs::kGatherFrom, 1));
  job.check(job.allgather(200000, 2));
  EXPECT_GT(job.cluster->total(Counter::repair_reads), 0u);
  job.cluster->run_for(kSecond);
  EXPECT_EQ(job.world.fake->remote_registrations(), 0u);
}

TEST(VerbsProtocol, LossesAllOverABlockAreReadPieceByPiece) {
  Lossy job(2);
  job.rate = 0.01;
  job.world.fake->largest_registration = verbs::kGatherPiece + 4096;
  job.check(job.broadcast(0, 2 * verbs::kGatherPiece + 12345, 1));
  EXPECT_GT(job.cluster->total(Counter::repair_reads), 0u);
  EXPECT_EQ(job.cluster->total(Counter::repair_chunks_sent), 0u);
}

// Chunks that are being read may also arrive otherwise; their donor must not end before the read
// does.
TEST(VerbsProtocol, NoRankIsCompleteBeforeItsReadsEnd) {
  Lossy job(4);
  job.check(job.broadcast(0, 100000, 1));
  FakeVerbs& fake = *job.world.fake;
  // Members 1 and 3 lose a chunk: 1 reads it from 2, 3 from the root. Neither read ends, both time
  // out and request it from the root, which sends the chunk to all again.
  int deliveries = 0;
  fake.on_datagram = [&deliveries](std::vector<std::byte>& bytes) {
    wire::DatagramHeader header;
    const ConstBytes datagram = ConstBytes(bytes).subspan(verbs::kGrh);
    if (wire::parse_datagram(datagram, header) != wire::ParseError::kNone) return true;
    if (header.type != wire::DatagramType::kData || header.chunk != 20) return true;
    return deliveries >= 4 || deliveries++ % 2 == 0;
  };
  fake.hold_reads = true;
  const auto ops = job.broadcast(0, 100000, 2);
  job.cluster->run_for(5 * kSecond);
  EXPECT_GT(fake.held_reads(), 0u);
  EXPECT_GT(job.cluster->total(Counter::remulticast_chunks), 0u) << "the chunk has come otherwise";
  for (const auto& op : ops) EXPECT_FALSE(op->done());
  fake.let_reads_go();
  job.check(ops);
  job.check(job.broadcast(1, 100000, 3));
}

TEST(VerbsProtocol, SmallOperationsAreRepairedByMessages) {
  Lossy job(3);
  job.rate = 0.3;
  for (uint64_t id = 1; id <= 30; ++id) job.check(job.broadcast(0, 6000, id));
  EXPECT_GT(job.cluster->total(Counter::repair_chunks_received), 0u);
  EXPECT_GT(job.cluster->total(Counter::repair_chunks_sent), 0u);
  EXPECT_EQ(job.cluster->total(Counter::repair_reads), 0u);
}

TEST(VerbsProtocol, WithoutMemoryToRegisterPayloadsAreCopiedAndRepairsGoByMessages) {
  Lossy job(3);
  job.check(job.broadcast(0, 100000, 1));  // the connections exist
  job.rate = 0.05;
  job.world.fake->registration_error = ENOMEM;
  job.check(job.broadcast(0, verbs::kGatherFrom, 2));
  EXPECT_EQ(job.cluster->total(Counter::repair_reads), 0u);
  EXPECT_EQ(job.cluster->total(Counter::gathered_datagrams), 0u);
  EXPECT_GT(job.cluster->total(Counter::repair_chunks_sent), 0u);
  job.world.fake->registration_error = 0;
}

TEST(VerbsProtocol, ReadsPassAnInterceptor) {
  Lossy job(3, "drop:rate=0.05,seed=3;reorder:rate=0.05,seed=4");
  job.check(job.allgather(300000, 1));
  EXPECT_GT(job.cluster->total(Counter::repair_reads), 0u);
}

TEST(VerbsProtocol, CorruptDatagramsAreRepairedToo) {
  Lossy job(3);
  job.world.fake->on_datagram = [&job](std::vector<std::byte>& bytes) {
    if (bytes.size() > 200 && job.rng.chance(0.05)) bytes[150] ^= std::byte{4};
    return true;
  };
  job.check(job.broadcast(0, 400000, 1));
  EXPECT_GT(job.cluster->total(Counter::corrupt), 0u);
  EXPECT_GT(job.cluster->total(Counter::repair_reads), 0u);
}

TEST(VerbsProtocol, ReductionsAndBarriersOverReliableConnections) {
  Lossy job(3);
  job.rate = 0.05;
  for (uint64_t id = 1; id <= 6; ++id) {
    std::vector<std::shared_ptr<OpRun>> ops;
    for (Member r = 0; r < 3; r++) {
      ops.push_back(job.cluster->reduction(
          r, id % 2 ? wire::Kind::kReduceScatter : wire::Kind::kAllreduce, kNoMember, 90000, id));
    }
    job.check(ops);
  }
}

}  // namespace
}  // namespace mcast::testing
