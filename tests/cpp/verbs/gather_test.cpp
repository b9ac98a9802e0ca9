// Datagrams whose payload the device reads from the caller's memory: the bytes that are sent, and
// how long the memory is held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "verbs/datagram_world.h"
#include "wire/datagram.h"

namespace mcast::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;

constexpr size_t kHeader = 32;

// Memory of a test; `alive` shows whether it is still held.
struct Source {
  std::shared_ptr<Buffer> memory;
  Slice block;
  std::weak_ptr<Buffer> alive;

  explicit Source(size_t size, uint64_t seed = 1)
      : memory(std::make_shared<Buffer>(pattern(size, seed))),
        block{std::make_shared<Region>(memory->data(), size, memory), 0, size},
        alive(memory) {}
  // Ends the operation and frees the caller's tensor.
  void drop() {
    block = {};
    memory.reset();
  }
};

class VerbsGather : public VerbsDatagram {
 protected:
  void two() {
    ASSERT_TRUE(add().dg().join(group).ok());
    ASSERT_TRUE(add().dg().join(group).ok());
    registered = fake().registrations();
  }
  bool gather(const Slice& block, size_t offset, size_t length,
              const MulticastAddress* to = nullptr) {
    Datagram& dg = nodes[0]->dg();
    const Bytes lent = dg.lend(to != nullptr ? *to : group, kHeader + length);
    if (lent.size() != kHeader + length) return false;
    const Buffer header = pattern(kHeader, offset);
    std::copy(header.begin(), header.end(), lent.begin());
    return dg.commit_gather(kHeader, block, offset, length);
  }
  static Buffer expected(ConstBytes memory, size_t offset, size_t length) {
    Buffer out = pattern(kHeader, offset);
    const ConstBytes payload = memory.subspan(offset, length);
    out.insert(out.end(), payload.begin(), payload.end());
    return out;
  }
  const UdStats& sender() const { return stats(0); }

  size_t registered = 0;  // the transports' own
};

TEST_F(VerbsGather, HeaderAndPayloadLeaveAsOneDatagramOfTwoPieces) {
  two();
  const size_t size = verbs::kGatherPiece + 10000;
  const Source source(size);
  std::vector<Buffer> want;
  // From the first byte of a piece to beyond its end, and the end of the region.
  for (const size_t offset :
       {size_t{0}, size_t{1}, verbs::kGatherPiece - 1, verbs::kGatherPiece, size - 3000}) {
    ASSERT_TRUE(gather(source.block, offset, 3000));
    want.push_back(expected(*source.memory, offset, 3000));
  }
  send(*nodes[0], pattern(500, 9));
  want.push_back(pattern(500, 9));
  poll();
  EXPECT_EQ(nodes[1]->datagrams, want);
  EXPECT_EQ(fake().gathered, (std::vector<int>{2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(sender().gathered_datagrams, 5u);
  EXPECT_EQ(fake().registrations() - registered, 2u) << "one per piece";
}

TEST_F(VerbsGather, MemoryIsHeldUntilTheDeviceHasReadItAndNoLonger) {
  two();
  Source source(5000);
  fake().hold_sends = true;
  ASSERT_TRUE(gather(source.block, 0, 3000));
  const Buffer want = expected(*source.memory, 0, 3000);
  source.drop();
  poll();
  EXPECT_FALSE(source.alive.expired());
  EXPECT_EQ(fake().registrations(), registered + 1);
  fake().let_sends_go();
  poll();
  EXPECT_EQ(nodes[1]->datagrams, std::vector<Buffer>{want});
  EXPECT_TRUE(source.alive.expired());
  EXPECT_EQ(fake().registrations(), registered);
  EXPECT_EQ(fake().destroyed_in_use, 0u);
}

// An operation may end and its caller may write while a repetition of a chunk is still queued.
TEST_F(VerbsGather, DataOverwrittenBeforeSendingHasAWrongChecksum) {
  two();
  const Source source(3000);
  fake().hold_sends = true;
  for (const uint32_t chunk : {0u, 1u}) {
    const Bytes entry = nodes[0]->dg().lend(group, wire::kDatagramHeader + 1500);
    wire::DatagramHeader header;
    header.chunk = chunk;
    wire::seal_datagram(entry, header, ConstBytes(*source.memory).subspan(chunk * 1500, 1500));
    ASSERT_TRUE(
        nodes[0]->dg().commit_gather(wire::kDatagramHeader, source.block, chunk * 1500, 1500));
  }
  nodes[0]->dg().flush();
  (*source.memory)[2000] ^= std::byte{1};
  fake().let_sends_go();
  poll();
  ASSERT_EQ(nodes[1]->datagrams.size(), 2u);
  EXPECT_TRUE(wire::verify_datagram(nodes[1]->datagrams[0]));
  EXPECT_FALSE(wire::verify_datagram(nodes[1]->datagrams[1]));
}

TEST_F(VerbsGather, OneCompletionFreesTheMemoryOfItsWholeChain) {
  two();
  fake().hold_sends = true;
  std::vector<Source> sources;
  for (size_t i = 0; i < verbs::kSendChain; ++i) {
    sources.emplace_back(2000, i);
    ASSERT_TRUE(gather(sources.back().block, 0, 2000));
    sources.back().drop();
  }
  poll();
  for (const Source& s : sources) EXPECT_FALSE(s.alive.expired());
  fake().let_sends_go();
  EXPECT_EQ(fake().unsignalled, verbs::kSendChain - 1);
  poll();
  for (const Source& s : sources) EXPECT_TRUE(s.alive.expired());
  EXPECT_EQ(nodes[1]->datagrams.size(), verbs::kSendChain);
  EXPECT_EQ(fake().registrations(), registered);
}

TEST_F(VerbsGather, EntriesThatComeAroundAgainHoldWhatIsNewInThem) {
  two();
  Source first(2000, 1), second(2000, 2);
  ASSERT_TRUE(gather(first.block, 0, 2000));
  poll();
  for (size_t i = 0; i + 1 < verbs::kSendEntries; ++i) send(*nodes[0], pattern(64, i));
  poll();
  fake().hold_sends = true;
  ASSERT_TRUE(gather(second.block, 0, 2000));  // the entry of the first
  first.drop();
  second.drop();
  poll();
  EXPECT_TRUE(first.alive.expired());
  EXPECT_FALSE(second.alive.expired());
  fake().let_sends_go();
  poll();
  EXPECT_TRUE(second.alive.expired());
}

TEST_F(VerbsGather, FailedSendsLetGo) {
  for (const ibv_wc_status status : {IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR}) {
    two();
    Source first(2000), second(2000, 2);
    fake().hold_sends = true;
    ASSERT_TRUE(gather(first.block, 0, 2000));
    nodes[0]->dg().flush();
    ASSERT_TRUE(gather(second.block, 0, 2000));
    nodes[0]->dg().flush();
    first.drop();
    second.drop();
    fake().datagram_status = status;
    fake().let_sends_go();
    poll();
    EXPECT_TRUE(first.alive.expired() && second.alive.expired()) << status;
    EXPECT_EQ(fake().registrations(), registered);
    EXPECT_GT(sender().send_errors, 0u);
    fake().datagram_status = IBV_WC_SUCCESS;
    nodes.clear();
    transports.clear();
  }
}

TEST_F(VerbsGather, DroppedOrRefusedDatagramsReleaseTheirMemory) {
  two();
  Source refused(2000), lost(2000, 2);
  fake().refuse_posts = 1000;
  ASSERT_TRUE(gather(refused.block, 0, 2000));
  refused.drop();
  nodes[0]->dg().flush();
  fake().refuse_posts = 0;
  EXPECT_TRUE(refused.alive.expired());

  // Sent to a group whose address is never resolved.
  const MulticastAddress nowhere{78, 4711, false};
  fake().join_status = -ENETUNREACH;
  ASSERT_TRUE(gather(lost.block, 0, 2000, &nowhere));
  lost.drop();
  EXPECT_FALSE(lost.alive.expired()) << "queued until the join has failed";
  poll();
  EXPECT_TRUE(lost.alive.expired());
  EXPECT_EQ(fake().registrations(), registered);
  EXPECT_EQ(sender().dropped_datagrams, 2u);
}

TEST_F(VerbsGather, LeavingSendsQueuedDatagrams) {
  two();
  Source source(2000);
  ASSERT_TRUE(gather(source.block, 0, 2000));
  source.drop();
  nodes[0]->dg().leave(group);
  EXPECT_TRUE(source.alive.expired());
  EXPECT_EQ(nodes[1]->datagrams.size() + fake().lost_without_receive, 0u);
  poll();
  EXPECT_EQ(nodes[1]->datagrams.size(), 1u);
}

TEST_F(VerbsGather, ClosingReleasesUnsentMemory) {
  two();
  Source posted(2000), queued(2000, 2);
  fake().hold_sends = true;
  ASSERT_TRUE(gather(posted.block, 0, 2000));
  nodes[0]->dg().flush();
  ASSERT_TRUE(gather(queued.block, 0, 2000));
  posted.drop();
  queued.drop();
  nodes.clear();
  transports.clear();
  EXPECT_TRUE(posted.alive.expired() && queued.alive.expired());
  EXPECT_EQ(fake().registrations(), 0u);
  EXPECT_EQ(fake().destroyed_in_use, 0u) << "the queue pair went first";
}

TEST_F(VerbsGather, ARefusedRegistrationLeavesTheLentMemoryToBeFilled) {
  two();
  const MemlockLimit limit(65536);
  const Source source(2 * verbs::kGatherPiece);
  fake().registration_error = ENOMEM;
  for (uint64_t i = 0; i < 3; ++i) {
    const Bytes lent = nodes[0]->dg().lend(group, 1000);
    EXPECT_FALSE(nodes[0]->dg().commit_gather(kHeader, source.block, 0, 1000 - kHeader));
    const Buffer copy = pattern(1000, i);
    std::copy(copy.begin(), copy.end(), lent.begin());
    nodes[0]->dg().commit(1000);
  }
  poll();
  ASSERT_EQ(nodes[1]->datagrams.size(), 3u);
  EXPECT_EQ(nodes[1]->datagrams[2], pattern(1000, 2));
  EXPECT_THAT(fake().gathered, Each(1));
  EXPECT_EQ(sender().gather_refusals, 1u) << "asked once for a piece";
  EXPECT_EQ(sender().gathered_datagrams, 0u);
  fake().registration_error = 0;
  EXPECT_FALSE(gather(source.block, 500, 1000)) << "the piece stays refused";
  EXPECT_TRUE(gather(source.block, verbs::kGatherPiece, 1000));
  poll();
  EXPECT_THAT(fake().gathered, Contains(2));
}

TEST_F(VerbsGather, ThreeQuartersOfALimitOfLockedMemoryAreLeftToOthers) {
  fake().locked_memory = 40000;
  two();
  Source first(6000, 1), second(6000, 2), third(4000, 3), large(10001, 4);
  EXPECT_TRUE(gather(first.block, 0, 1000));
  EXPECT_FALSE(gather(second.block, 0, 1000));
  EXPECT_TRUE(gather(third.block, 0, 1000));
  EXPECT_FALSE(gather(large.block, 0, 1000));
  EXPECT_EQ(sender().gather_refusals, 2u);
  poll();
  first.drop();
  EXPECT_TRUE(gather(second.block, 1000, 1000)) << "the first's share is free again";
  poll();
}

TEST_F(VerbsGather, WithARefusalLastTheOthersEndWithTheRegionToo) {
  two();
  Source source(2 * verbs::kGatherPiece);
  ASSERT_TRUE(gather(source.block, 0, 1000));
  fake().registration_error = ENOMEM;
  ASSERT_FALSE(gather(source.block, verbs::kGatherPiece, 1000));
  poll();
  source.drop();
  poll(1);
  EXPECT_EQ(fake().registrations(), registered);
}

TEST_F(VerbsGather, RegistrationsEndWithTheRegion) {
  two();
  Source source(3 * verbs::kGatherPiece);
  for (size_t piece = 0; piece < 3; ++piece) {
    ASSERT_TRUE(gather(source.block, piece * verbs::kGatherPiece, 1000));
  }
  poll();
  EXPECT_EQ(fake().registrations(), registered + 3);
  source.block = {};
  poll(1);
  EXPECT_EQ(fake().registrations(), registered);
}

// A datagram in flight must not keep an old registration of its addresses: the storage may have
// been freed and mapped anew (resize_, FSDP2) while the tensor lived on.
TEST_F(VerbsGather, OtherMemoryAtTheSameAddressIsRegisteredAnew) {
  two();
  constexpr size_t kSize = 1 << 16;
  const auto map = [](void* at) {
    return ::mmap(at, kSize, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  };
  void* const at = map(nullptr);
  ASSERT_NE(at, MAP_FAILED);
  const auto tensor = std::make_shared<int>(0);
  const auto lend = [&] {
    return Slice{std::make_shared<Region>(static_cast<std::byte*>(at), kSize, tensor), 0, kSize};
  };
  Slice block = lend();
  fake().hold_sends = true;
  ASSERT_TRUE(gather(block, 0, 2000));
  nodes[0]->dg().flush();
  block = {};
  ASSERT_EQ(map(at), at);
  block = lend();
  ASSERT_TRUE(gather(block, 0, 2000));
  EXPECT_EQ(fake().registrations(), registered + 2);
  fake().let_sends_go();
  poll();
  block = {};
  poll(1);
  EXPECT_EQ(fake().registrations(), registered);
  ::munmap(at, kSize);
}

TEST_F(VerbsGather, PeersReadAndTheDeviceGathersByOneRegistration) {
  two();
  const Source source(verbs::kGatherPiece);
  ASSERT_TRUE(gather(source.block, 0, 1000));
  const auto grant = nodes[0]->st().remote_memory()->expose(source.block, 0);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(fake().registrations(), registered + 1);
  poll();
}

TEST_F(VerbsGather, OnlyTheBlockIsRegisteredNotAllOfItsStorage) {
  two();
  const Source storage(100000);
  fake().largest_registration = 5000;
  const Slice block{storage.block.region, 40000, 5000}, next{storage.block.region, 45000, 5000};
  ASSERT_TRUE(gather(block, 4000, 1000));
  ASSERT_TRUE(gather(next, 0, 1000));
  ASSERT_TRUE(gather(block, 0, 1000));
  poll();
  const ConstBytes all(*storage.memory);
  EXPECT_EQ(nodes[1]->datagrams,
            (std::vector<Buffer>{expected(all.subspan(40000, 5000), 4000, 1000),
                                 expected(all.subspan(45000, 5000), 0, 1000),
                                 expected(all.subspan(40000, 5000), 0, 1000)}));
  EXPECT_EQ(fake().registrations(), registered + 2);
}

TEST_F(VerbsGather, OnlyBytesOfTheBlockAndOnlyAsManyAsWereLent) {
  two();
  const Source source(5000);
  EXPECT_FALSE(gather(source.block, 4001, 1000));
  EXPECT_FALSE(gather(source.block, SIZE_MAX - 100, 1000));
  ASSERT_EQ(nodes[0]->dg().lend(group, 500).size(), 500u);
  EXPECT_FALSE(nodes[0]->dg().commit_gather(kHeader, source.block, 0, 500));
  EXPECT_EQ(fake().registrations(), registered);
  EXPECT_TRUE(gather(source.block, 4000, 1000));
  poll();
}

TEST_F(VerbsGather, DevicesThatCannotAndKernelsThatHideMemoryFromForksCopy) {
  fake().attr.max_sge = 1;
  EXPECT_EQ(add().dg().gather_from(), SIZE_MAX);
  fake().attr.max_sge = 2;
  EXPECT_EQ(add().dg().gather_from(), verbs::kGatherFrom);
  fake().fork_copies_memory = false;
  EXPECT_EQ(add().dg().gather_from(), SIZE_MAX);
  const Source source(5000);
  ASSERT_TRUE(nodes[0]->dg().join(group).ok());
  EXPECT_FALSE(gather(source.block, 0, 1000));
}

}  // namespace
}  // namespace mcast::testing
