// Both sides count bytes from the beginning and mask the count to get the position, so a full ring
// and an empty one differ. The writer copies a record in and then raises `tail`; the reader checks
// the claim (at most the ring's size, whole words of 8 bytes), reads the record's length once,
// copies the record out once, raises `head`, and uses only its copy from then on. If the other side
// overwrites the record meanwhile, the copy's content may be wrong, but never its length.
//
// Sleeping is Dekker's handshake: the reader stores `asleep` and then loads `tail`, the writer
// stores `tail` and then takes `asleep`. All four are sequentially consistent, so at least one side
// sees the other's store.
#include "host_engine/ipc/ring.h"

#include <algorithm>
#include <atomic>

#include "wire/bytes.h"

namespace mcast::ipc {
namespace {

void copy_in(const RingPlace& at, uint64_t position, ConstBytes from) noexcept {
  const size_t begin = position & (at.capacity - 1);
  const size_t first = std::min(from.size(), at.capacity - begin);
  std::memcpy(at.bytes + begin, from.data(), first);
  std::memcpy(at.bytes, from.data() + first, from.size() - first);
}

void copy_out(const RingPlace& at, uint64_t position, std::byte* to, size_t length) noexcept {
  const size_t begin = position & (at.capacity - 1);
  const size_t first = std::min(length, at.capacity - begin);
  std::memcpy(to, at.bytes + begin, first);
  std::memcpy(to + first, at.bytes, length - first);
  // Keeps the compiler from reading the ring again instead of the copy.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

bool possible(uint64_t waiting, size_t capacity) noexcept {
  return waiting <= capacity && waiting % 8 == 0;
}

}  // namespace

bool RingWriter::write(ConstBytes record) noexcept {
  const size_t used = waiting();
  if (broken_ || record.size() > at_.capacity - used) return false;
  copy_in(at_, tail_, record);
  tail_ += record.size();
  at_.words->tail.store(tail_, std::memory_order_seq_cst);
  return true;
}

size_t RingWriter::waiting() noexcept {
  const uint64_t used = tail_ - at_.words->head.load(std::memory_order_acquire);
  broken_ = broken_ || !possible(used, at_.capacity);
  return broken_ ? at_.capacity : static_cast<size_t>(used);
}

bool RingWriter::take_sleeper(std::atomic<uint32_t>& asleep) noexcept {
  return asleep.load(std::memory_order_seq_cst) != 0 &&
         asleep.exchange(0, std::memory_order_seq_cst) != 0;
}

RingReader::Found RingReader::read() noexcept {
  if (broken_) return Found::kBroken;
  const uint64_t waiting = at_.words->tail.load(std::memory_order_acquire) - head_;
  if (waiting == 0) return Found::kNothing;
  broken_ = !possible(waiting, at_.capacity) || waiting < kMinRecord;
  if (broken_) return Found::kBroken;
  // Words of 8 bytes never wrap around the end.
  const std::byte* const start = at_.bytes + (head_ & (at_.capacity - 1));
  const size_t length =
      std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(reinterpret_cast<const uint32_t*>(start)))
          .load(std::memory_order_relaxed);
  broken_ = length < kMinRecord || length > kMaxRecord || length % 8 != 0 || length > waiting;
  if (broken_) return Found::kBroken;
  copy_out(at_, head_, record_->data(), length);
  wire::store<uint32_t>(record_->data(), static_cast<uint32_t>(length));
  length_ = length;
  head_ += length;
  at_.words->head.store(head_, std::memory_order_release);
  return Found::kRecord;
}

bool RingReader::something() const noexcept {
  return broken_ || at_.words->tail.load(std::memory_order_seq_cst) != head_;
}

bool RingReader::announce_sleep(std::atomic<uint32_t>& asleep) noexcept {
  asleep.store(1, std::memory_order_seq_cst);
  if (!something()) return true;
  asleep.store(0, std::memory_order_seq_cst);
  return false;
}

}  // namespace mcast::ipc
