#include "base/streaming_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace mcast {
namespace {

TEST(StreamingCopy, CopiesAnyLengthToAndFromAnyAddressAndNothingElse) {
  constexpr size_t kRoom = 10'000;
  std::vector<std::byte> from(kRoom), to(kRoom), expected(kRoom);
  for (size_t i = 0; i < kRoom; i++) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const size_t source : {0, 1, 63}) {
    for (size_t target = 0; target <= 64; target++) {
      for (const size_t size :
           {0, 1, 15, 16, 31, 63, 64, 65, 127, 128, 200, 256, 4095, 4097, 4200, 9001}) {
        for (const auto copy : {streaming_copy, streaming_copy_from_memory}) {
          std::fill(to.begin(), to.end(), std::byte{0xee});
          expected = to;
          std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), size,
                      expected.begin() + static_cast<std::ptrdiff_t>(target));
          copy(to.data() + target, from.data() + source, size);
          ASSERT_EQ(to, expected) << source << " " << target << " " << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mcast
