// Early data: chunks of operations that this rank has not posted yet, kept in bounded memory so
// that a root may start without a barrier. Roots send no more ahead than fits (EagerWindow); chunks
// that still do not fit are dropped, counted by the caller and repaired later. Pure.
#pragma once

#include <map>
#include <utility>
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
    bool live;  // came by multicast
    std::vector<std::byte> payload;
  };

  enum class Put { kStored, kDuplicate, kFull };
  Put put(Sequence sequence, const Key& key, uint32_t descriptor, bool live, ConstBytes payload);
  bool holds(Sequence sequence, const Key& key) const;
  // Returns true if any chunk of `root` is kept for op `sequence`.
  bool holds(Sequence sequence, Member root) const;
  // Removes and returns the chunks of op `sequence`, in (root, chunk) order.
  std::map<Key, Entry> take(Sequence sequence);
  size_t bytes() const { return bytes_; }
  // Peak of the bytes kept since the previous call.
  size_t take_peak() { return std::exchange(peak_, bytes_); }

 private:
  size_t capacity_;
  size_t bytes_ = 0, peak_ = 0;
  std::map<Sequence, std::map<Key, Entry>> ops_;
};

}  // namespace mcast
