// Counts are bytes since the beginning; a position in the ring is a count modulo its size. A record
// that does not fit before the ring's end starts at its beginning, and a pad fills the rest. The
// reader reports room once half of the ring is free, and only to a writer that waits: one wake-up
// for many records.
#include "shm/message_ring.h"

#include <cstring>

namespace mcast {

bool MessageRingWriter::fits(size_t length) {
  const size_t size = size_of(length), left = capacity_ - written_ % capacity_;
  const size_t needed = size <= left ? size : left + size;
  if (written_ + needed - read_ <= capacity_) return true;
  read_ = state_.read.load(std::memory_order_seq_cst);
  return written_ + needed - read_ <= capacity_;
}

void MessageRingWriter::put(const RingRecord& record, ConstBytes body, ConstBytes payload) {
  std::byte* const at = data_ + written_ % capacity_;
  std::memcpy(at, &record, sizeof record);
  if (!body.empty()) std::memcpy(at + sizeof record, body.data(), body.size());
  if (!payload.empty()) {
    std::memcpy(at + sizeof record + body.size(), payload.data(), payload.size());
  }
  written_ += size_of(record.length);
}

void MessageRingWriter::write(const RingRecord& record, ConstBytes body, ConstBytes payload) {
  const size_t left = capacity_ - written_ % capacity_;
  if (size_of(record.length) > left) {
    RingRecord pad;
    pad.type = kPad;
    pad.length = static_cast<uint32_t>(left - sizeof pad);
    std::memcpy(data_ + written_ % capacity_, &pad, sizeof pad);
    written_ += left;
  }
  put(record, body, payload);
  state_.written.store(written_, std::memory_order_seq_cst);
}

bool MessageRingWriter::wait() {
  state_.full.store(1, std::memory_order_seq_cst);
  read_ = state_.read.load(std::memory_order_seq_cst);
  return written_ - read_ <= capacity_ / 2;
}

std::optional<MessageRingReader::Read> MessageRingReader::next() {
  for (;;) {
    if (broken_) return std::nullopt;
    if (read_ == written_) {
      written_ = state_.written.load(std::memory_order_seq_cst);
      if (read_ == written_) return std::nullopt;
    }
    const std::byte* const at = data_ + read_ % capacity_;
    Read read;
    std::memcpy(&read.record, at, sizeof read.record);
    const size_t size = size_of(read.record.length);
    broken_ = size > written_ - read_ || size > capacity_ - read_ % capacity_;
    if (broken_) return std::nullopt;
    reading_ = size;
    if (read.record.type != kPad) {
      read.body = {at + sizeof read.record, read.record.length};
      return read;
    }
    read_ += size;  // the record behind it frees this space
  }
}

bool MessageRingReader::consume() {
  read_ += reading_;
  state_.read.store(read_, std::memory_order_seq_cst);
  if (written_ - read_ > capacity_ / 2) return false;
  if (state_.full.load(std::memory_order_seq_cst) == 0) return false;
  state_.full.store(0, std::memory_order_seq_cst);
  return true;
}

}  // namespace mcast
