// Accepts each packet number once, in any order within the last ones: networks reorder datagrams,
// and the threads of a busy host do. Like the window of IPsec (RFC 4303, 3.4.3), but by the numbers
// themselves: numbers of one kind of datagram are far apart. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace mcast::crypto {

class ReplayWindow {
 public:
  // Numbers that are remembered. A later one that arrives behind so many others is refused.
  static constexpr size_t kNumbers = 16;

  // Returns true if the number was accepted before, or is too old to tell.
  bool refuses(uint64_t number) const noexcept {
    return number < least_ || std::find(numbers_.begin(), numbers_.begin() + count_, number) !=
                                  numbers_.begin() + count_;
  }

  // A number that it does not refuse.
  void accept(uint64_t number) noexcept {
    if (count_ < kNumbers) {
      numbers_[count_++] = number;
      return;
    }
    const auto oldest = std::min_element(numbers_.begin(), numbers_.end());
    if (number < *oldest) {
      least_ = std::max(least_, number + 1);
      return;
    }
    least_ = std::max(least_, *oldest + 1);
    *oldest = number;
  }

 private:
  std::array<uint64_t, kNumbers> numbers_{};
  uint8_t count_ = 0;
  uint64_t least_ = 0;  // smaller numbers are refused
};

}  // namespace mcast::crypto
