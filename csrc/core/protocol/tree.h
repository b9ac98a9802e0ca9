// The control tree of a group: a complete `arity`-ary heap over members 0..size-1, member 0 on top.
// Up to arity + 1 members it is a star. Credits, completion and probe results flow along it.
#pragma once

#include <algorithm>

#include "base/types.h"

namespace mcast {

class Tree {
 public:
  Tree(uint32_t size, uint32_t arity) : size_(size), arity_(arity) {}

  static constexpr Member kTop = 0;
  bool is_top(Member m) const { return m == kTop; }
  // m must not be the top.
  Member parent(Member m) const { return static_cast<Member>((m - 1u) / arity_); }
  uint32_t first_child(Member m) const { return m * arity_ + 1; }
  uint32_t children(Member m) const {
    const uint64_t first = static_cast<uint64_t>(m) * arity_ + 1;
    if (first >= size_) return 0;
    return static_cast<uint32_t>(std::min<uint64_t>(arity_, size_ - first));
  }
  // Position of `child` among the children of its parent.
  uint32_t child_index(Member child) const { return (child - 1u) % arity_; }
  bool is_child(Member m, Member of) const { return m != kTop && m < size_ && parent(m) == of; }
  // The child of `from` whose subtree holds `to`, or the parent of `from` if none does. from != to.
  Member next_hop(Member from, Member to) const {
    Member m = to;
    while (m != kTop) {
      const Member up = parent(m);
      if (up == from) return m;
      m = up;
    }
    return parent(from);
  }
  uint32_t size() const { return size_; }

 private:
  uint32_t size_, arity_;
};

}  // namespace mcast
