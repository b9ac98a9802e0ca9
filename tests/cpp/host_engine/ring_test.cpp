// Rings between two processes: records are read as they were written, a full ring reports it, and
// no value of the other side makes one access memory outside of it.
#include "host_engine/ipc/ring.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/seeds.h"
#include "wire/bytes.h"

namespace mcast::ipc {
namespace {

constexpr size_t kCapacity = size_t{64} << 10;

// A ring between guards, whose words any test may change.
struct Memory {
  RingWords words{};
  std::vector<std::byte> bytes = std::vector<std::byte>(kCapacity + 128, std::byte{0xa5});
  std::byte* start() { return bytes.data() + 64; }
  RingPlace place() { return {&words, start(), kCapacity}; }
  bool guards_intact() const {
    for (size_t i = 0; i < 64; i++) {
      if (bytes[i] != std::byte{0xa5} || bytes[bytes.size() - 1 - i] != std::byte{0xa5}) {
        return false;
      }
    }
    return true;
  }
};

std::vector<std::byte> record_of(uint64_t number, size_t length) {
  std::vector<std::byte> out(length);
  for (size_t i = 4; i < length; i++) out[i] = std::byte(number * 31 + i);
  wire::store<uint32_t>(out.data(), static_cast<uint32_t>(length));
  return out;
}

size_t random_length(std::mt19937_64& rng) {
  const bool small = rng() % 4 != 0;
  return rounded(kMinRecord + rng() % (small ? 200 : kMaxRecord - kMinRecord));
}

using Found = RingReader::Found;

TEST(Ring, RecordsAreReadAsWritten) {
  for (const uint64_t seed : test::seeds(50)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 rng(seed);
    Memory memory;
    RingWriter writer(memory.place());
    RingReader reader(memory.place());
    std::vector<std::vector<std::byte>> waiting;
    uint64_t number = 0, position = 0;
    for (int step = 0; step < 400; step++) {
      if (rng() % 2 == 0) {
        const auto record = record_of(number, random_length(rng));
        size_t used = 0;
        for (const auto& w : waiting) used += w.size();
        ASSERT_EQ(writer.waiting(), used);
        ASSERT_EQ(writer.write(record), used + record.size() <= kCapacity);
        if (used + record.size() <= kCapacity) waiting.push_back(record), number++;
      } else if (waiting.empty()) {
        ASSERT_EQ(reader.read(), Found::kNothing);
      } else {
        ASSERT_EQ(reader.read(), Found::kRecord);
        const ConstBytes got = reader.record();
        ASSERT_EQ(std::vector<std::byte>(got.begin(), got.end()), waiting.front());
        position += got.size();
        ASSERT_EQ(reader.position(), position);
        waiting.erase(waiting.begin());
      }
    }
    EXPECT_TRUE(memory.guards_intact());
    EXPECT_FALSE(writer.broken());
  }
}

TEST(Ring, RecordsPassBetweenThreadsWithoutALostWakeUp) {
  Memory memory;
  std::atomic<uint32_t> asleep{0}, woken{0};
  constexpr uint64_t kRecords = 20000;
  std::thread writing([&] {
    std::mt19937_64 rng(1);
    RingWriter writer(memory.place());
    for (uint64_t i = 0; i < kRecords;) {
      if (!writer.write(record_of(i, rounded(kMinRecord + rng() % 300)))) {
        std::this_thread::yield();
        continue;
      }
      i++;
      if (RingWriter::take_sleeper(asleep)) {
        woken.fetch_add(1);
        woken.notify_one();
      }
    }
  });
  // The reader sleeps whenever it may: a lost wake-up would run into the test's limit. The writer
  // may wake a reader that has announced to sleep and then sees that there is data.
  RingReader reader(memory.place());
  uint32_t slept = 0;
  for (uint64_t i = 0; i < kRecords;) {
    const Found found = reader.read();
    ASSERT_NE(found, Found::kBroken);
    const uint32_t before = woken.load();
    if (found == Found::kRecord) {
      ASSERT_EQ(reader.record()[4], record_of(i, 16)[4]);
      i++;
    } else if (reader.announce_sleep(asleep)) {
      woken.wait(before);
      slept++;
    }
  }
  writing.join();
  EXPECT_GE(woken.load(), slept) << "each sleep ends by a wake-up of its own";
}

TEST(Ring, ClaimsThatCannotBe) {
  struct Case {
    uint64_t tail;
    uint32_t length;
  };
  // Tails: more than the ring holds, backwards, not whole words, less than a record. Lengths: zero,
  // less than a record, too long, not whole words, beyond the written part.
  for (const Case c : {Case{kCapacity + 8, 16}, Case{uint64_t(-8), 16}, Case{uint64_t{1} << 63, 16},
                       Case{17, 16}, Case{8, 8}, Case{64, 0}, Case{64, 8}, Case{64, 65536},
                       Case{64, 20}, Case{64, 72}, Case{64, 0xffffffff}}) {
    Memory memory;
    wire::store<uint32_t>(memory.start(), c.length);
    memory.words.tail = c.tail;
    RingReader reader(memory.place());
    EXPECT_EQ(reader.read(), Found::kBroken) << c.tail << " " << c.length;
    // A broken ring stays broken.
    memory.words.tail = 0;
    EXPECT_EQ(reader.read(), Found::kBroken);
    std::atomic<uint32_t> asleep{0};
    EXPECT_FALSE(reader.announce_sleep(asleep)) << "who has to end a client does not sleep";
    EXPECT_EQ(memory.words.head, 0u);
  }
  for (const uint64_t head : {uint64_t{8}, uint64_t(-kCapacity - 8), uint64_t(-4)}) {
    Memory memory;
    memory.words.head = head;
    RingWriter writer(memory.place());
    EXPECT_FALSE(writer.write(record_of(1, 16))) << head;
    EXPECT_TRUE(writer.broken());
    EXPECT_EQ(memory.words.tail, 0u);
  }
}

// Bytes of ring and words change while it is read: the reader stops or continues, within bounds.
TEST(Ring, AnyByteMayChange) {
  for (const uint64_t seed : test::seeds(300)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 rng(seed);
    Memory memory;
    RingWriter writer(memory.place());
    RingReader reader(memory.place());
    uint64_t position = 0;
    for (int step = 0; step < 200; step++) {
      (void)writer.write(record_of(rng(), random_length(rng)));
      if (rng() % 8 == 0) memory.start()[rng() % kCapacity] = std::byte(rng());
      if (rng() % 16 == 0) memory.words.tail.fetch_xor(uint64_t{1} << rng() % 64);
      if (rng() % 32 == 0) memory.words.head.fetch_xor(uint64_t{1} << rng() % 64);
      if (reader.read() != Found::kRecord) continue;
      const size_t length = reader.record().size();
      ASSERT_GE(length, kMinRecord);
      ASSERT_LE(length, kMaxRecord);
      ASSERT_EQ(wire::load<uint32_t>(reader.record().data()), length);
      position += length;
      ASSERT_EQ(reader.position(), position);
    }
    ASSERT_TRUE(memory.guards_intact());
  }
}

}  // namespace
}  // namespace mcast::ipc
