// Memory that is given back is poisoned if the address sanitizer is there, and in any case filled
// with a pattern that is checked at the end.
#include "support/lent_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

// GCC defines this macro; clang has to be asked.
#ifdef __has_feature
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace mcast::test {
namespace {

constexpr std::byte kGone{0x5a};

#ifdef __SANITIZE_ADDRESS__
void poison(Bytes bytes) { __asan_poison_memory_region(bytes.data(), bytes.size()); }
void unpoison(Bytes bytes) { __asan_unpoison_memory_region(bytes.data(), bytes.size()); }
#else
void poison(Bytes) {}
void unpoison(Bytes) {}
#endif

}  // namespace

Guarded::~Guarded() {
  if (!given_back_) return;
  unpoison(bytes_);
  // All bytes are equal if each equals its neighbor. The loop below is slow in a build without
  // optimization.
  if (bytes_.front() == kGone &&
      std::memcmp(bytes_.data(), bytes_.data() + 1, bytes_.size() - 1) == 0) {
    return;
  }
  const auto late =
      std::find_if(bytes_.begin(), bytes_.end(), [](std::byte b) { return b != kGone; });
  EXPECT_EQ(late, bytes_.end()) << "written after it was given back: byte "
                                << late - bytes_.begin() - 64 << " of " << size_;
}

void Guarded::give_back(bool read_late) {
  if (given_back_) return;
  given_back_ = true;
  std::fill(bytes_.begin(), bytes_.end(), kGone);
  if (!read_late) poison(bytes_);
}

}  // namespace mcast::test
