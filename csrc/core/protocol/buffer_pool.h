// Buffers that are reused instead of returned to the allocator. Not thread-safe.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace mcast {

class BufferPool {
 public:
  BufferPool() = default;
  // Keeps at most `most` unused buffers.
  explicit BufferPool(size_t most) : most_(most) {}

  // Returns a buffer of `size` bytes with unspecified contents.
  std::vector<std::byte> take(size_t size) {
    if (free_.empty()) return std::vector<std::byte>(size);
    std::vector<std::byte> buffer = std::move(free_.back());
    free_.pop_back();
    buffer.resize(size);
    return buffer;
  }
  void give(std::vector<std::byte> buffer) {
    if (free_.size() < most_ && buffer.capacity() > 0) free_.push_back(std::move(buffer));
  }
  size_t held() const { return free_.size(); }

 private:
  size_t most_ = 64;
  std::vector<std::vector<std::byte>> free_;
};

}  // namespace mcast
