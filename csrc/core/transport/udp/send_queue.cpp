// Bytes go to the last block until it is full; emptied blocks leave at the front, and one of them
// is kept for the next append.
#include "transport/udp/send_queue.h"

#include <algorithm>
#include <cstring>

namespace mcast {
namespace {

constexpr size_t kBlock = 64 * 1024;

}  // namespace

void SendQueue::append(ConstBytes bytes) {
  while (!bytes.empty()) {
    if (blocks_.empty() || blocks_.back().end == kBlock) {
      Block block;
      block.data = spare_ ? std::move(spare_) : std::make_unique_for_overwrite<std::byte[]>(kBlock);
      blocks_.push_back(std::move(block));
    }
    Block& last = blocks_.back();
    const size_t n = std::min(bytes.size(), kBlock - last.end);
    std::memcpy(last.data.get() + last.end, bytes.data(), n);
    last.end += n;
    size_ += n;
    bytes = bytes.subspan(n);
  }
}

size_t SendQueue::front(std::span<iovec> vectors) const {
  size_t used = 0;
  for (const Block& block : blocks_) {
    if (used == vectors.size()) break;
    vectors[used++] = {block.data.get() + block.begin, block.end - block.begin};
  }
  return used;
}

void SendQueue::consume(size_t bytes) {
  while (bytes > 0 && !blocks_.empty()) {
    Block& first = blocks_.front();
    const size_t n = std::min(bytes, first.end - first.begin);
    first.begin += n;
    size_ -= n;
    bytes -= n;
    if (first.begin == first.end) {
      spare_ = std::move(first.data);
      blocks_.pop_front();
    }
  }
}

void SendQueue::clear() {
  blocks_.clear();
  spare_.reset();
  size_ = 0;
}

}  // namespace mcast
