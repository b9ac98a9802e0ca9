// Messages among ranks of one host if the other rank's memory is wrong: records that no correct
// rank writes, memory that is gone or was given back.
#include <gtest/gtest.h>

#include <cstring>

#include "shm/host_world.h"
#include "shm/message_ring.h"
#include "shm/message_runs.h"
#include "support/errors.h"

namespace mcast::test {
namespace {

// Records that a correct rank does not write.
TEST(HostMessages, ABrokenProtocolIsAFailure) {
  using T = wire::FrameType;
  struct Case {
    uint8_t type;
    uint32_t number;
    std::vector<uint64_t> words;
    const char* what;
  };
  const std::vector<Case> cases = {
      {static_cast<uint8_t>(T::kMessage), 5, {0}, "a message with an invalid beginning"},
      {1, 4, {200'000, 1}, "a message with an invalid beginning"},
      {1, 0, {200'000}, "a record of unknown kind"},
      {2, 0, {}, "a reply to a message that was not sent"},
      {static_cast<uint8_t>(T::kMessageData), 0, {0, 1}, "a piece of a message that was not"},
      {static_cast<uint8_t>(T::kMessageGrant), 0, {1}, "a reply to a message that was not sent"},
      {77, 0, {}, "a record of unknown kind"},
  };
  for (const Case& one : cases) {
    HostWorld world(2, PeerMemory::kRead, 1);
    const auto r = receive(world, 0, 1, 0, 8);
    MessageRingWriter writer(world.block().ring(1, 0), ControlBlock::ring_bytes(2));
    RingRecord record;
    record.type = one.type;
    record.number = one.number;
    record.length = static_cast<uint32_t>(one.words.size() * 8);
    writer.write(record, {reinterpret_cast<const std::byte*>(one.words.data()), record.length}, {});
    world.block().board(0).news[0].store(2);
    ASSERT_TRUE(world.run());
    ASSERT_EQ(r->ends, 1) << one.what;
    EXPECT_TRUE(says(*r, one.what)) << r->status.message();
    EXPECT_EQ(world.total(Counter::malformed), 1u);
  }
}

TEST(HostMessages, ARecordBeyondItsRingIsAFailure) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto r = receive(world, 0, 1, 0, 8);
  auto& state = *reinterpret_cast<MessageRingState*>(world.block().ring(1, 0));
  RingRecord record;
  record.length = 1000;
  std::memcpy(world.block().ring(1, 0) + sizeof state, &record, sizeof record);
  state.written = 16;
  world.block().board(0).news[0].store(2);
  ASSERT_TRUE(world.run());
  EXPECT_TRUE(says(*r, "a record goes beyond its ring")) << r->status.message();
}

// Memory that was given back while it was read is never accepted.
TEST(HostMessages, BytesReadAfterTheFailureAreNotDelivered) {
  for (const PeerMemory memory : {PeerMemory::kRead, PeerMemory::kMapped}) {
    HostWorld world(3, memory, 1);
    const auto s = send(world, 0, 1, 0, 2'000'000, 1);
    ASSERT_TRUE(world.run());
    int reads = 0;
    world.on_read = [&] {
      if (reads++ == 1) {
        world.core(0).fail(Status(Code::kAborted, "enough"), 0);
        world.core(0).deliver();  // its memory is overwritten from now on
      }
    };
    const auto r = receive(world, 1, 0, 0, 2'000'000);
    ASSERT_TRUE(world.run());
    EXPECT_GE(reads, 1);
    ASSERT_EQ(r->ends, 1);
    EXPECT_EQ(s->ends, 1);
    EXPECT_TRUE(says(*r, "enough")) << r->status.message();
  }
}

TEST(HostMessages, UnreadableMemoryIsALostRank) {
  HostWorld world(2, PeerMemory::kRead, 1);
  send(world, 0, 1, 0, 2'000'000, 1);
  ASSERT_TRUE(world.run());
  world.kill(0);
  const auto r = receive(world, 1, 0, 0, 2'000'000);
  ASSERT_TRUE(world.run());
  ASSERT_EQ(r->ends, 1);
  EXPECT_TRUE(
      is_error(r->status, ErrorId::rank_lost, {{"rank", "0"}, {"why", "its process has ended"}}));
}

}  // namespace
}  // namespace mcast::test
