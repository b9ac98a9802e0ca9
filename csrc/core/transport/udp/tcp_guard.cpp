// A frame in the queue lies in one or two of its blocks and is sealed from there; only its length
// and number are copied first. The buffer of sealed bytes keeps its memory, the size of the largest
// burst. If the buffer never drains, its contents are moved to the front from time to time.
#include "transport/udp/tcp_guard.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace mcast {
namespace {

// The next `size` bytes of the queue, in at most as many pieces as fit; returns the pieces used.
template <size_t N>
size_t pieces(std::span<const iovec> vectors, size_t skip, size_t size,
              std::array<ConstBytes, N>& out) {
  size_t used = 0;
  for (const iovec& v : vectors) {
    const size_t begin = std::min(skip, v.iov_len);
    const size_t take = std::min(size, v.iov_len - begin);
    skip -= begin;
    size -= take;
    if (take > 0) out[used++] = {static_cast<const std::byte*>(v.iov_base) + begin, take};
  }
  return used;
}

uint32_t read_u32(std::span<const iovec> vectors, size_t skip) {
  std::array<ConstBytes, 4> parts;
  std::array<std::byte, 4> bytes{};
  size_t at = 0;
  const size_t used = pieces(vectors, skip, bytes.size(), parts);
  for (size_t i = 0; i < used; ++i) {
    for (const std::byte b : parts[i]) bytes[at++] = b;
  }
  return decode_prefix(bytes.data());
}

}  // namespace

void TcpGuard::written(size_t bytes) {
  begin_ += bytes;
  if (begin_ == end_) begin_ = end_ = 0;
}

std::byte* TcpGuard::make_room(size_t bytes) {
  if (capacity_ - end_ < bytes) {
    const ConstBytes rest = waiting();
    const size_t needed = rest.size() + bytes;
    // Twice the size needed, so that fewer bytes are moved than were written since the last move.
    std::unique_ptr<std::byte[]> larger;
    if (capacity_ < 2 * needed) {
      larger = std::make_unique_for_overwrite<std::byte[]>(2 * needed);
      capacity_ = 2 * needed;
    }
    std::byte* const front = larger ? larger.get() : out_.get();
    if (!rest.empty()) std::memmove(front, rest.data(), rest.size());
    if (larger) out_ = std::move(larger);
    end_ = rest.size();
    begin_ = 0;
  }
  return out_.get() + end_;
}

bool TcpGuard::seal(std::optional<uint32_t> number, crypto::Parts body) {
  size_t size = 0;
  for (const ConstBytes part : body) size += part.size();
  const size_t record = crypto::record_size(size, number.has_value());
  if (!records_.seal(number, body, make_room(record))) return false;
  end_ += record;
  return true;
}

bool TcpGuard::seal_from(SendQueue& queue, bool numbered) {
  while (!queue.empty() && !full()) {
    std::array<iovec, 4> vectors;  // blocks of 64 KiB: a frame never spans more
    const size_t used = queue.front(vectors);
    const std::span<const iovec> front(vectors.data(), used);
    uint32_t length = read_u32(front, 0);
    const bool goodbye = length == kGoodbyeLength;
    if (goodbye) length = 0;
    std::optional<uint32_t> number;
    if (numbered) number = goodbye ? 0 : read_u32(front, kFramePrefix);
    const size_t head = kFramePrefix + (numbered && !goodbye ? kFrameNumber : 0);
    const size_t body = goodbye ? 0 : kFramePrefix + length - head;
    std::array<ConstBytes, 4> parts;
    const size_t count = pieces(front, head, body, parts);
    if (!seal(number, {parts.data(), count})) return false;
    queue.consume(head + body);
  }
  return true;
}

std::optional<ConstBytes> TcpGuard::open(bool numbered, ConstBytes record, Bytes scratch) {
  const size_t skip = numbered ? kFrameNumber : 0;
  const auto body = records_.open(numbered, record, scratch.subspan(skip));
  if (!body || body->empty() || !numbered) return body;
  if (body->data() == scratch.data() + skip) {
    const ConstBytes number = record.subspan(kFramePrefix, kFrameNumber);
    std::copy(number.begin(), number.end(), scratch.begin());
  }
  // Without a guard it already stands behind its number.
  return ConstBytes(body->data() - skip, body->size() + skip);
}

}  // namespace mcast
