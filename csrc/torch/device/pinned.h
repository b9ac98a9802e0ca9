// Pinned host memory for device tensors, kept for the next operation: allocating it in the driver
// takes milliseconds and may wait for the whole device.
//
// Collectives have a budget: a call that would exceed it waits for earlier ones, which never depend
// on later ones, as long as all ranks make the same calls in the same order. Messages come in any
// order or never, so they have no budget.
//
// Threads: any. The memory of a buffer is returned with its last reference, so code that lets a
// device use it keeps a reference until the device is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace mcast::pg {

class PinnedBuffer {
 public:
  explicit PinnedBuffer(at::Tensor bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const c10::Storage& storage() const { return bytes_.storage(); }

 private:
  at::Tensor bytes_;
  std::byte* data_;
  size_t size_;
};

// At least `bytes`, contents undefined. Throws torch's error if there is none.
std::shared_ptr<PinnedBuffer> pinned_buffer(size_t bytes);

// Pinned memory held by collectives of this process.
struct PinnedUse {
  size_t bytes = 0;
  size_t peak = 0;     // the peak so far
  uint64_t waits = 0;  // calls that had to wait
};
PinnedUse pinned_use();
// The same as pinned_buffer() for a collective, once all collectives together hold at most `budget`
// including it, or it is the only one. Until then `wait` is called every 200 ms, without a lock,
// with the bytes that they hold. It may throw; it returns false if waiting is pointless, since the
// call will fail.
using PinnedWait = std::function<bool(size_t held)>;
std::shared_ptr<PinnedBuffer> pinned_for_collective(size_t bytes, size_t budget,
                                                    const PinnedWait& wait);

// The same for the data of a send; and the bytes of such memory, of all sends, that are still in
// use.
std::shared_ptr<PinnedBuffer> pinned_for_send(size_t bytes);
size_t pinned_for_sends();

}  // namespace mcast::pg
