// Memory ranges that a rank lets the others of its host read if one process runs them all (an
// engine of the host); each range is published as long as its owner exists. A peer can name any
// address, but can read no other memory of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/region.h"

namespace mcast {

// The ranges of one rank in one group. Thread-safe.
class Published {
 public:
  // Publishes until `owner` is gone; the owner keeps the memory, so a reader holds a reference to
  // it.
  void add(const void* data, size_t bytes, const std::shared_ptr<const void>& owner);
  // Publishes the whole region: the memory of a post. (Empty slices have none.)
  void add(const std::shared_ptr<Region>& region);

  // Owner of the range that contains all of [address, address + length); null: not published.
  std::shared_ptr<const void> find(uint64_t address, size_t length) const;
  // Copies from there. A word that its owner is changing concurrently is read in one piece.
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
