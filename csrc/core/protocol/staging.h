// Early data: chunks of operations that this rank has not posted yet, kept in bounded memory so
// that a root may start without a barrier. Roots send no more ahead than fits (EagerWindow); what
// does not fit all the same is dropped, counted by the caller and repaired later. Pure.
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
  // Whether anything of `root` is kept of op `sequence`.
  bool holds(Sequence sequence, Member root) const;
  // Removes and returns what is kept of op `sequence`, in (root, chunk) order.
  std::map<Key, Entry> take(Sequence sequence);
  size_t bytes() const { return bytes_; }
  // Most bytes that were kept at once since this was asked last.
  size_t take_peak() { return std::exchange(peak_, bytes_); }

 private:
  size_t capacity_;
  size_t bytes_ = 0, peak_ = 0;
  std::map<Sequence, std::map<Key, Entry>> ops_;
};

}  // namespace mcast
