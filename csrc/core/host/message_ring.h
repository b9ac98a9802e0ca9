// A ring of messages from one rank to another of its host, in the control block: records of bytes,
// each in one piece, in the order in which they were written. One writer, one reader; neither waits
// here. Both sides keep the other's count as they saw it last, so that a record costs no look at a
// word that the other side is writing to.
//
// Waiting for room: the writer calls wait(), arms its needs, calls wait() again, and sleeps if
// there still is no room; a reader whose consume() says so wakes it then. All of that in one total
// order (seq_cst), so one of the two always sees the other.
#pragma once

#include <optional>

#include "base/types.h"
#include "host/control_block.h"

namespace mcast {

struct RingRecord {
  uint32_t length = 0;  // bytes behind this
  uint8_t type = 0;
  uint8_t pad[3] = {};
  uint32_t number = 0, argument = 0;
};

// What both sides know.
class MessageRing {
 public:
  // `memory`: ControlBlock::ring(), `bytes` of it.
  MessageRing(std::byte* memory, size_t bytes)
      : state_(*reinterpret_cast<MessageRingState*>(memory)),
        data_(memory + sizeof(MessageRingState)),
        capacity_(bytes - sizeof(MessageRingState)) {}

  // Bytes of a record, at most: two of them fit wherever the ring's end is.
  static constexpr size_t most(size_t bytes) {
    return (bytes - sizeof(MessageRingState)) / 4 / kAlign * kAlign - sizeof(RingRecord);
  }

 protected:
  static constexpr size_t kAlign = 16;
  static constexpr uint8_t kPad = 0xff;  // of a record that only fills the ring up to its end
  static_assert(sizeof(RingRecord) == kAlign && sizeof(MessageRingState) % kAlign == 0);
  static constexpr size_t size_of(size_t length) {
    return sizeof(RingRecord) + (length + kAlign - 1) / kAlign * kAlign;
  }

  MessageRingState& state_;
  std::byte* const data_;
  const size_t capacity_;
  uint64_t written_ = 0, read_ = 0;  // as this side knows them
};

// Whoever drives the sender's lane.
class MessageRingWriter : private MessageRing {
 public:
  using MessageRing::MessageRing;
  // Whether a record of `length` bytes may be written now.
  bool fits(size_t length);
  // It fits. `record.length` counts both parts.
  void write(const RingRecord& record, ConstBytes body, ConstBytes payload);
  // There was no room: the reader is to say when half of the ring is free. True: it is already.
  bool wait();

 private:
  void put(const RingRecord& record, ConstBytes body, ConstBytes payload);
};

// Whoever drives the receiver's lane.
class MessageRingReader : private MessageRing {
 public:
  using MessageRing::MessageRing;
  struct Read {
    RingRecord record;
    ConstBytes body;  // valid until consume()
  };
  // The oldest record that was not consumed.
  std::optional<Read> next();
  // What next() has said. True: the writer waits for room, and there is some.
  bool consume();
  // A record goes beyond what was written: nothing more is read.
  bool broken() const { return broken_; }

 private:
  size_t reading_ = 0;  // bytes of what next() has said
  bool broken_ = false;
};

}  // namespace mcast
