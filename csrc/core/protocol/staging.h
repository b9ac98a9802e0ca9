// Early data: chunks of operations that this rank has not posted yet, kept in bounded memory so
// that a root may start without a barrier. A cache: what does not fit is dropped, counted by the
// caller and repaired later. Pure.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"

namespace mcast {

class Staging {
 public:
  explicit Staging(size_t capacity) : capacity_(capacity) {}

  struct Key {
    Member root;
    Chunk chunk;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    uint32_t descriptor;
    std::vector<std::byte> payload;
  };

  enum class Put { kStored, kDuplicate, kFull };
  Put put(Sequence sequence, const Key& key, uint32_t descriptor, ConstBytes payload);
  // Removes and returns what is kept of op `sequence`, in (root, chunk) order.
  std::map<Key, Entry> take(Sequence sequence);
  size_t bytes() const { return bytes_; }

 private:
  // What one kept chunk costs beyond its payload, roughly: map node and vector.
  static constexpr size_t kOverhead = 96;
  size_t capacity_;
  size_t bytes_ = 0;
  std::map<Sequence, std::map<Key, Entry>> ops_;
};

}  // namespace mcast
