// A ring by itself: bytes, order, its end, waiting for room, and records that no correct rank
// writes.
#include "shm/message_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <thread>

#include "base/rng.h"
#include "shm/memory_block.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

class RingTest : public testing::Test {
 protected:
  static constexpr uint32_t kMembers = 200;  // with this many members, rings are small
  const size_t bytes_ = ControlBlock::ring_bytes(kMembers);
  const MemoryBlock memory_{kMembers};
  MessageRingWriter writer_{memory_.block().ring(3, 7), bytes_};
  MessageRingReader reader_{memory_.block().ring(3, 7), bytes_};

  void write(std::vector<std::byte> data, uint32_t number) {
    RingRecord record;
    record.type = 9;
    record.number = number;
    record.argument = ~number;
    record.length = static_cast<uint32_t>(data.size());
    const size_t half = data.size() / 3;
    writer_.write(record, ConstBytes(data).first(half), ConstBytes(data).subspan(half));
  }
};

std::vector<std::byte> some(Rng& rng, size_t most) {
  std::vector<std::byte> data(rng.below(most + 1));
  for (std::byte& b : data) b = static_cast<std::byte>(rng.next());
  return data;
}

TEST_F(RingTest, RecordsComeAsTheyWereWritten) {
  const size_t most = MessageRing::most(bytes_);
  for (const uint64_t seed : seeds(20)) {
    Rng rng(seed);
    std::deque<std::vector<std::byte>> inside;
    uint32_t in = 0, out = 0;
    for (int i = 0; i < 2000; i++) {
      if (rng.chance(0.5)) {
        auto data = some(rng, rng.chance(0.5) ? 40 : most);
        if (!writer_.fits(data.size())) continue;
        inside.push_back(data);
        write(std::move(data), in++);
      } else if (const auto read = reader_.next()) {
        ASSERT_FALSE(inside.empty());
        ASSERT_EQ(read->record.number, out++);
        ASSERT_EQ(read->record.argument, ~read->record.number);
        ASSERT_EQ(read->record.type, 9);
        ASSERT_TRUE(std::equal(read->body.begin(), read->body.end(), inside.front().begin(),
                               inside.front().end()));
        inside.pop_front();
        EXPECT_FALSE(reader_.consume()) << "nobody waits";
      } else {
        ASSERT_TRUE(inside.empty());
      }
    }
    while (reader_.next()) {
      reader_.consume();
      inside.pop_front();
    }
    ASSERT_TRUE(inside.empty());
    ASSERT_FALSE(reader_.broken());
  }
}

TEST_F(RingTest, TheLongestFitsWhereverTheEndIs) {
  const size_t most = MessageRing::most(bytes_);
  for (int i = 0; i < 500; i++) {
    ASSERT_TRUE(writer_.fits(most)) << i;
    write(std::vector<std::byte>(i % 2 == 0 ? most : 100 + i), 0);
    ASSERT_TRUE(reader_.next());
    reader_.consume();
  }
}

// A writer that waits is notified once, when half of the ring is free.
TEST_F(RingTest, WaitingWriterIsNotifiedWhenHalfIsFree) {
  constexpr size_t kRecord = 496;
  size_t records = 0;
  for (; writer_.fits(kRecord); records++) write(std::vector<std::byte>(kRecord), 0);
  EXPECT_GT(records * (kRecord + 16), bytes_ - 1024);
  EXPECT_FALSE(writer_.wait());
  size_t told_at = 0, consumed = 0;
  while (reader_.next()) {
    consumed++;
    if (!reader_.consume()) continue;
    EXPECT_EQ(told_at, 0u) << "told once";
    told_at = consumed;
  }
  EXPECT_EQ(consumed, records);
  EXPECT_NEAR(static_cast<double>(told_at), static_cast<double>(records) / 2, 2);
  EXPECT_TRUE(writer_.wait()) << "what waits too late sees it";
}

TEST_F(RingTest, ARecordBeyondWhatWasWrittenIsNotRead) {
  for (const uint32_t length : {100u, 1u << 30, UINT32_MAX}) {
    MessageRingState& state = *reinterpret_cast<MessageRingState*>(memory_.block().ring(1, 2));
    RingRecord record;
    record.length = length;
    std::memcpy(memory_.block().ring(1, 2) + sizeof state, &record, sizeof record);
    state.written = 64;
    MessageRingReader reader(memory_.block().ring(1, 2), bytes_);
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.broken());
    EXPECT_FALSE(reader.next());
  }
}

// With any number of ranks, the longest record has room for a useful piece, and the address space
// of all rings stays within some GiB.
TEST(Rings, AreSmallerWhereThereAreMoreOfThem) {
  for (const uint32_t ranks : {2u, 8u, 32u, 64u, 128u, 256u, kHostMembers}) {
    const size_t bytes = ControlBlock::ring_bytes(ranks);
    EXPECT_GE(MessageRing::most(bytes), 1900u);
    EXPECT_LE(bytes * ranks * ranks, size_t{ranks > 256 ? 8192u : 512u} << 20);
    if (ranks <= 32) {
      EXPECT_EQ(bytes, 256u << 10);
    }
  }
}

// Lets a thread sanitizer check the order of counts and bytes.
TEST_F(RingTest, RecordsArriveInOrderBetweenTwoThreads) {
  constexpr uint32_t kRecords = 20'000;
  std::thread other([&] {
    for (uint32_t n = 0; n < kRecords;) {
      const auto read = reader_.next();
      if (!read) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(read->record.number, n);
      for (const std::byte b : read->body) ASSERT_EQ(b, static_cast<std::byte>(n));
      reader_.consume();
      n++;
    }
  });
  Rng rng(1);
  for (uint32_t n = 0; n < kRecords; n++) {
    std::vector<std::byte> data(rng.below(300), static_cast<std::byte>(n));
    while (!writer_.fits(data.size())) std::this_thread::yield();
    write(std::move(data), n);
  }
  other.join();
}

}  // namespace
}  // namespace mcast::test
