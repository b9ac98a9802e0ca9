// The contributor's side of a reduce-scatter: which segment goes to which owner next. Segment s of
// every block leaves before segment s + 1 of any, as far as the owners' grants allow, beginning
// with the next member: so every owner is fed from the start, and one that is slow to grant holds
// up only its own block. Pure.
#pragma once

#include <optional>
#include <vector>

#include "base/types.h"

namespace mcast {

class ReduceSender {
 public:
  // segments[m]: of member m's block; granted: they need no grants.
  ReduceSender(Member self, std::vector<uint32_t> segments, bool granted)
      : self_(self),
        total_(std::move(segments)),
        granted_(granted ? total_ : std::vector<uint32_t>(total_.size())),
        sent_(total_.size()),
        cursor_(self) {
    total_[self] = granted_[self] = 0;
    for (const uint32_t n : total_) left_ += n;
  }

  // False: more than there is. Older grants are no news.
  bool on_grant(Member owner, uint32_t end) {
    if (owner >= total_.size() || end > total_[owner]) return false;
    if (end > granted_[owner]) granted_[owner] = end;
    return true;
  }

  struct Next {
    Member owner;
    uint32_t segment;
  };
  // The next segment for an owner that `can(owner, segment)` take; sent() then records it.
  template <typename Can>
  std::optional<Next> next(Can&& can) const {
    const auto members = static_cast<uint32_t>(total_.size());
    std::optional<Next> best;
    for (uint32_t i = 1; i <= members; i++) {
      const auto owner = static_cast<Member>((cursor_ + i) % members);
      const uint32_t segment = sent_[owner];
      if (segment >= granted_[owner] || (best && segment >= best->segment)) continue;
      if (can(owner, segment)) best = Next{owner, segment};
    }
    return best;
  }
  void sent(Member owner) {
    sent_[owner]++;
    left_--;
    cursor_ = owner;
  }
  uint32_t sent_to(Member owner) const { return sent_[owner]; }
  bool done() const { return left_ == 0; }
  Member self() const { return self_; }

 private:
  Member self_;
  std::vector<uint32_t> total_, granted_, sent_;
  uint64_t left_ = 0;
  Member cursor_;
};

}  // namespace mcast
