// Rings of records in shared memory: one writer, one reader, in different processes that need not
// trust each other.
//
// A record is a u32 of its whole length, which is a multiple of 8 from 16 bytes to kMaxRecord, and
// its data. Records follow each other without gaps and may wrap around the end of the ring.
#pragma once

#include <array>
#include <cstring>
#include <memory>

#include "host_engine/ipc/layout.h"

namespace mcast::ipc {

inline constexpr size_t kMinRecord = 16;
inline constexpr size_t kMaxRecord = size_t{32} << 10;

constexpr size_t rounded(size_t bytes) noexcept { return (bytes + 7) & ~size_t{7}; }

// Location of a ring. `capacity` is a power of two, above kMaxRecord.
struct RingPlace {
  RingWords* words;
  std::byte* bytes;
  size_t capacity;
};

class RingWriter {
 public:
  explicit RingWriter(RingPlace place) noexcept : at_(place) {}

  // `record` begins with its length. Returns false if there is no room, or the ring is broken.
  bool write(ConstBytes record) noexcept;
  // Returns true if the reader has stored an impossible index. No record is written any more.
  bool broken() const noexcept { return broken_; }
  // Returns true if the reader sleeps; the caller must then wake it. For several records, call it
  // after the last one.
  static bool take_sleeper(std::atomic<uint32_t>& asleep) noexcept;
  // Bytes written and not read yet.
  size_t waiting() noexcept;

 private:
  RingPlace at_;
  uint64_t tail_ = 0;
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(RingPlace place)
      : at_(place), record_(std::make_unique<std::array<std::byte, kMaxRecord>>()) {}

  enum class Found : uint8_t { kNothing, kRecord, kBroken };
  // Takes the next record out of the ring. kBroken: the writer has stored an impossible index or
  // length; no record follows.
  Found read() noexcept;
  // The record that was taken: a private copy, of the length that it states. Valid until the next
  // read().
  ConstBytes record() const noexcept { return {record_->data(), length_}; }
  // Bytes that have been taken.
  uint64_t position() const noexcept { return head_; }

  // Announces that the reader is about to sleep. Returns false, without effect, if there is a
  // record to read.
  bool announce_sleep(std::atomic<uint32_t>& asleep) noexcept;

 private:
  bool something() const noexcept;

  RingPlace at_;
  uint64_t head_ = 0;
  bool broken_ = false;
  size_t length_ = 0;
  std::unique_ptr<std::array<std::byte, kMaxRecord>> record_;
};

}  // namespace mcast::ipc
