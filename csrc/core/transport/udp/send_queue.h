// A queue of bytes to be written to a stream socket: appended in pieces, taken from the front as
// vectors. Small frames are merged into 64 KB blocks; queued bytes are never moved.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <span>

#include "base/types.h"

namespace mcast {

class SendQueue {
 public:
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  void append(ConstBytes bytes);
  // Fills `vectors` from the front; returns the number used.
  size_t front(std::span<iovec> vectors) const;
  void consume(size_t bytes);
  // Drops everything and gives the memory back.
  void clear();

 private:
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t begin = 0, end = 0;
  };
  std::deque<Block> blocks_;
  std::unique_ptr<std::byte[]> spare_;  // one block kept, so that a busy queue does not allocate
  size_t size_ = 0;
};

}  // namespace mcast
