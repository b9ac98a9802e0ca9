// Credit of one operation at one member of the control tree: the reports of its own receivers and
// of its children's subtrees, reduced to the least per root and passed on. Pure.
#pragma once

#include <vector>

#include "base/types.h"
#include "wire/frame.h"

namespace mcast {

class CreditTree {
 public:
  // `roots`: number of streams of the op; streams are 0..roots-1 (the caller maps members to
  // streams).
  CreditTree(uint32_t roots, uint32_t children);

  struct Least {
    Chunk high_water = 0, limit = 0;
    uint32_t lost = 0;
    bool operator==(const Least&) const = default;
  };

  // This member posted the op; entries set later by set_own().
  void post_own() { posted_[0] = true; }
  void set_own(uint32_t stream, const Least& value) { set(0, stream, value); }
  // A report of child `child` (0-based); says that its whole subtree has posted the op.
  void post_child(uint32_t child) { posted_[child + 1] = true; }
  void set_child(uint32_t child, uint32_t stream, const Least& value) {
    set(child + 1, stream, value);
  }
  // The stream's own root has no receiver: it must not hold the minimum back.
  static constexpr Least unbounded() { return {0xffffffff, 0xffffffff, 0}; }

  // The whole subtree, this member included, has posted the op.
  bool all_posted() const;
  bool child_posted(uint32_t child) const { return posted_[child + 1]; }
  // The last report of child `child`.
  const Least& child(uint32_t child, uint32_t stream) const {
    return values_[static_cast<size_t>(child + 1) * roots_ + stream];
  }

  // Streams whose minimum has changed since the previous call, with its value; empty until
  // all_posted() returns true. The first call after that returns every stream.
  void collect(std::vector<std::pair<uint32_t, Least>>& changed);

 private:
  void set(uint32_t source, uint32_t stream, const Least& value);

  uint32_t roots_, sources_;
  std::vector<Least> values_;  // [source][stream]
  std::vector<Least> given_;   // [stream], as returned by the last collect()
  std::vector<bool> posted_;   // [source]
  std::vector<bool> dirty_;    // [stream]
  std::vector<uint32_t> dirty_list_;
  bool announced_ = false;
};

}  // namespace mcast
