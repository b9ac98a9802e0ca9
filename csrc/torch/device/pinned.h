// Pinned host memory for device tensors, kept for the next operation: getting it from the driver
// takes milliseconds and may wait for the whole device.
//
// Collectives have a budget: a call that would exceed it waits for earlier ones, which need nothing
// that comes later, as long as all ranks make the same calls in the same order. Messages come in
// any order or never, so they have none.
//
// Threads: any. The memory of a buffer goes back with its last reference, so whoever lets a device
// touch it keeps one until the device is done.
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

// At least `bytes`, content arbitrary. Throws what torch throws when there is none.
std::shared_ptr<PinnedBuffer> pinned_buffer(size_t bytes);

// What collectives of this process hold.
struct PinnedUse {
  size_t bytes = 0;
  size_t peak = 0;     // the most so far
  uint64_t waits = 0;  // calls that had to wait
};
PinnedUse pinned_use();
// The same as pinned_buffer() for a collective, once what all of them hold is at most `budget` with
// it, or it is the only one. `wait` is called every 200 ms until then, without a lock, with what
// they hold; it may throw; false: there is no need to wait any longer, since the call will fail.
using PinnedWait = std::function<bool(size_t held)>;
std::shared_ptr<PinnedBuffer> pinned_for_collective(size_t bytes, size_t budget,
                                                    const PinnedWait& wait);

// The same for what a send reads; and bytes of such memory, of all sends, that is still in use.
std::shared_ptr<PinnedBuffer> pinned_for_send(size_t bytes);
size_t pinned_for_sends();

}  // namespace mcast::pg
