// Memory that a test lends to an operation.
#pragma once

#include <cstddef>
#include <vector>

#include "base/types.h"

namespace mcast::test {

// Memory with 64 guard bytes on either side. Once it is given back to its owner, nobody else may
// touch it: a late read gets other bytes, a late write is found at the end, and under
// AddressSanitizer both end the test immediately. (Except where a device may still read it, as
// Datagram::commit_gather() allows.)
class Guarded {
 public:
  explicit Guarded(size_t size) : bytes_(size + 128, std::byte{0xA5}), size_(size) {}
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  void give_back(bool read_late = false);
  std::byte* data() { return bytes_.data() + 64; }
  size_t size() const { return size_; }
  bool intact() const {
    for (size_t i = 0; i < 64; i++) {
      if (bytes_[i] != std::byte{0xA5} || bytes_[64 + size_ + i] != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t size_;
  bool given_back_ = false;
};

}  // namespace mcast::test
