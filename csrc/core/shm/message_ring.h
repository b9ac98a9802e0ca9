// A ring of messages from one rank to another of its host, in the control block: records of bytes,
// each contiguous, in the order in which they were written. One writer, one reader; neither waits
// here. Each side caches the other's count, so that a record normally does not read a word that the
// other side writes.
//
// Waiting for room: the writer calls wait(), registers its needs, calls wait() again, and sleeps if
// there still is no room; a reader whose consume() returns true then wakes it. All of this is in
// one total order (seq_cst), so at least one of the two sees the other.
#pragma once

#include <optional>

#include "base/types.h"
#include "shm/control_block.h"

namespace mcast {

struct RingRecord {
  uint32_t length = 0;  // bytes after this header
  uint8_t type = 0;
  uint8_t pad[3] = {};
  uint32_t number = 0, argument = 0;
};

// State and constants common to both sides.
class MessageRing {
 public:
  // `memory`: ControlBlock::ring(), of `bytes` bytes.
  MessageRing(std::byte* memory, size_t bytes)
      : state_(*reinterpret_cast<MessageRingState*>(memory)),
        data_(memory + sizeof(MessageRingState)),
        capacity_(bytes - sizeof(MessageRingState)) {}

  // Longest record: two of them fit for any position of the ring's end.
  static constexpr size_t most(size_t bytes) {
    return (bytes - sizeof(MessageRingState)) / 4 / kAlign * kAlign - sizeof(RingRecord);
  }

 protected:
  static constexpr size_t kAlign = 16;
  static constexpr uint8_t kPad = 0xff;  // type of a record that only fills the ring up to its end
  static_assert(sizeof(RingRecord) == kAlign && sizeof(MessageRingState) % kAlign == 0);
  static constexpr size_t size_of(size_t length) {
    return sizeof(RingRecord) + (length + kAlign - 1) / kAlign * kAlign;
  }

  MessageRingState& state_;
  std::byte* const data_;
  const size_t capacity_;
  uint64_t written_ = 0, read_ = 0;  // as last seen by this side
};

// Used by the driver of the sender's lane.
class MessageRingWriter : private MessageRing {
 public:
  using MessageRing::MessageRing;
  // Returns true if a record of `length` bytes can be written now.
  bool fits(size_t length);
  // fits() must have returned true. `record.length` counts both parts.
  void write(const RingRecord& record, ConstBytes body, ConstBytes payload);
  // Called when there was no room: asks the reader to report when half of the ring is free. Returns
  // true if it is already.
  bool wait();

 private:
  void put(const RingRecord& record, ConstBytes body, ConstBytes payload);
};

// Used by the driver of the receiver's lane.
class MessageRingReader : private MessageRing {
 public:
  using MessageRing::MessageRing;
  struct Read {
    RingRecord record;
    ConstBytes body;  // valid until consume()
  };
  // The oldest record that is not consumed.
  std::optional<Read> next();
  // Consumes the record of next(). Returns true if the writer waits for room, and there is some.
  bool consume();
  // Returns true if a record exceeded the written bytes: no more is read.
  bool broken() const { return broken_; }

 private:
  size_t reading_ = 0;  // bytes of the record that next() returned
  bool broken_ = false;
};

}  // namespace mcast
