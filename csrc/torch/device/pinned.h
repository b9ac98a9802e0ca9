// Pinned host memory for device tensors, kept for the next operation: getting it from the driver
// takes milliseconds and may wait for the whole device.
//
// Threads: any. The memory of a buffer goes back with its last reference, so whoever lets a device
// touch it keeps one until the device is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
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
// The same for what a send reads; and bytes of such memory, of all sends, that is still in use.
std::shared_ptr<PinnedBuffer> pinned_for_send(size_t bytes);
size_t pinned_for_sends();

}  // namespace mcast::pg
