// The contributor's side of a reduce-scatter: which contribution goes next, and to whom. Whoever
// folds segments has a list of them and grants its front: each owner, and each station that has a
// part (collective/station_share.h). Segment s of every block leaves before segment s + 1 of any,
// as far as grants allow, beginning with the next member: so everybody is fed from the start, and
// one that is slow to grant holds up only its own list. Pure.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcast {

class ReduceSender {
 public:
  // What we contribute to, and its number in the list of whoever folds it.
  struct Entry {
    Member owner;
    uint32_t segment;
    uint32_t number;
  };
  // Lists of owners come first, by member.
  struct List {
    // All of the owner's block, in order: `entries` is empty.
    static List whole(uint32_t segments) { return {{}, segments, true}; }

    std::vector<Entry> entries;  // of ours, numbers ascending
    uint32_t length = 0;         // entries of others included
    bool is_whole = false;
  };

  ReduceSender(Member self, std::vector<List> lists, bool granted)
      : self_(self), lists_(std::move(lists)), states_(lists_.size()), cursor_(self) {
    for (size_t l = 0; l < lists_.size(); l++) {
      if (granted) states_[l].granted = lists_[l].length;
      left_ += count(static_cast<uint32_t>(l));
    }
  }

  // False: more than there is. Older grants are no news.
  bool on_grant(uint32_t list, uint32_t end) {
    if (list >= lists_.size() || end > lists_[list].length) return false;
    if (end > states_[list].granted) states_[list].granted = end;
    return true;
  }

  struct Next {
    uint32_t list;
    Entry entry;
  };
  // The next contribution for a list that `can(list, entry)` take; sent() then records it.
  template <typename Can>
  std::optional<Next> next(Can&& can) const {
    const auto count = static_cast<uint32_t>(lists_.size());
    std::optional<Next> best;
    for (uint32_t i = 1; i <= count; i++) {
      const uint32_t list = (cursor_ + i) % count;
      const std::optional<Entry> entry = granted_entry(list);
      if (!entry || (best && entry->segment >= best->entry.segment)) continue;
      if (can(list, *entry)) best = Next{list, *entry};
    }
    return best;
  }
  void sent(uint32_t list) {
    states_[list].sent++;
    left_--;
    cursor_ = list;
  }

  // The list, which is not whole, grows; its owner grants on.
  void append(Member owner, uint32_t segment) {
    List& list = lists_[owner];
    list.entries.push_back({owner, segment, list.length++});
    left_++;
  }
  // Nothing more goes there; not for a whole list.
  void drop(uint32_t list) {
    left_ -= lists_[list].entries.size() - states_[list].sent;
    lists_[list].entries.resize(states_[list].sent);
  }

  uint32_t sent_to(uint32_t list) const { return states_[list].sent; }
  bool done() const { return left_ == 0; }
  // Something is granted and not sent.
  bool pending() const {
    for (uint32_t l = 0; l < lists_.size(); l++) {
      if (granted_entry(l)) return true;
    }
    return false;
  }
  Member self() const { return self_; }

 private:
  struct State {
    uint32_t granted = 0;  // numbers below
    uint32_t sent = 0;     // of our entries
  };
  uint32_t count(uint32_t list) const {
    const List& l = lists_[list];
    return l.is_whole ? l.length : static_cast<uint32_t>(l.entries.size());
  }
  std::optional<Entry> granted_entry(uint32_t list) const {
    const auto& [granted, sent] = states_[list];
    if (sent == count(list)) return std::nullopt;
    const List& l = lists_[list];
    const Entry entry = l.is_whole ? Entry{static_cast<Member>(list), sent, sent} : l.entries[sent];
    return entry.number < granted ? std::optional(entry) : std::nullopt;
  }

  Member self_;
  std::vector<List> lists_;
  std::vector<State> states_;
  uint64_t left_ = 0;
  uint32_t cursor_;  // the list of the last contribution
};

}  // namespace mcast
