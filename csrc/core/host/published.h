// What a rank lets the others of its host read where one process runs them all (an engine of the
// host): ranges of memory, each for as long as who owns it. Nothing else of this process can be
// read by what a peer names, whatever that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/region.h"

namespace mcast {

// Of one rank in one group. Thread-safe.
class Published {
 public:
  // Until `owner` is gone; it keeps the memory, so who has found a range holds it meanwhile.
  void add(const void* data, size_t bytes, const std::shared_ptr<const void>& owner);
  // The whole of it: its post's memory. (Empty slices have none.)
  void add(const std::shared_ptr<Region>& region);

  // Holds [address, address + length), all of it in one range; null: nobody has published that.
  std::shared_ptr<const void> find(uint64_t address, size_t length) const;
  // Copies from there. A word that its owner may just be changing is read whole.
  bool copy(uint64_t address, std::byte* to, size_t length) const;

 private:
  struct Range {
    uint64_t begin, end;
    std::weak_ptr<const void> owner;
  };
  mutable std::mutex mutex_;
  std::vector<Range> ranges_;
};

}  // namespace mcast
