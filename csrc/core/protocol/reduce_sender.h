// The contributor's side of a reduce-scatter: selects the next contribution and its receiver. Each
// executor has a list of the segments that it folds, and grants a prefix of it: each owner, and
// each station that has a part (collective/station_share.h). Segment s of every block is sent
// before segment s + 1 of any, as far as grants allow, beginning with the next member: so all
// executors get data from the start, and one that is slow to grant delays only its own list. Pure.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcast {

class ReduceSender {
 public:
  // A segment to contribute to, and its number in the executor's list.
  struct Entry {
    Member owner;
    uint32_t segment;
    uint32_t number;
  };
  // Lists of owners come first, by member.
  struct List {
    // A list of all segments of the owner's block, in order: `entries` is empty.
    static List whole(uint32_t segments) { return {{}, segments, true}; }

    std::vector<Entry> entries;  // this rank's, numbers ascending
    uint32_t length = 0;         // including entries of other contributors
    bool is_whole = false;
  };

  ReduceSender(Member self, std::vector<List> lists, bool granted)
      : self_(self), lists_(std::move(lists)), states_(lists_.size()), cursor_(self) {
    for (size_t l = 0; l < lists_.size(); l++) {
      if (granted) states_[l].granted = lists_[l].length;
      left_ += count(static_cast<uint32_t>(l));
      look(static_cast<uint32_t>(l));
    }
  }

  // Returns false if the grant exceeds the list. Older grants are ignored.
  bool on_grant(uint32_t list, uint32_t end) {
    if (list >= lists_.size() || end > lists_[list].length) return false;
    if (end > states_[list].granted) {
      states_[list].granted = end;
      look(list);
    }
    return true;
  }

  struct Next {
    uint32_t list;
    Entry entry;
  };
  // The next contribution for which `can(list, entry)` returns true; sent() then records it.
  template <typename Can>
  std::optional<Next> next(Can&& can) const {
    const auto offer = [&](uint32_t list) {
      looks_++;
      const Entry entry = *granted_entry(list);
      return can(list, entry) ? std::optional(Next{list, entry}) : std::nullopt;
    };
    // For each segment, first the lists after the cursor, then the others.
    for (auto first = ready_.begin(); first != ready_.end();) {
      const auto end = std::upper_bound(first, ready_.end(), Ready{first->segment, kNoList});
      const auto middle = std::upper_bound(first, end, Ready{first->segment, cursor_});
      for (auto at = middle; at != end; ++at) {
        if (const auto next = offer(at->list)) return next;
      }
      for (auto at = first; at != middle; ++at) {
        if (const auto next = offer(at->list)) return next;
      }
      first = end;
    }
    return std::nullopt;
  }
  void sent(uint32_t list) {
    states_[list].sent++;
    left_--;
    cursor_ = list;
    look(list);
  }

  // Appends to a list that is not whole; its owner continues to grant.
  void append(Member owner, uint32_t segment) {
    List& list = lists_[owner];
    list.entries.push_back({owner, segment, list.length++});
    left_++;
    look(owner);
  }
  // Sends nothing more to this list, which must not be whole.
  void drop(uint32_t list) {
    left_ -= lists_[list].entries.size() - states_[list].sent;
    lists_[list].entries.resize(states_[list].sent);
    look(list);
  }

  uint32_t sent_to(uint32_t list) const { return states_[list].sent; }
  bool done() const { return left_ == 0; }
  // Returns true if a granted contribution has not been sent.
  bool pending() const { return !ready_.empty(); }
  // Number of lists that next() has examined so far: the cost of selecting.
  uint64_t looks() const { return looks_; }
  Member self() const { return self_; }

 private:
  static constexpr uint32_t kNoList = UINT32_MAX;
  struct State {
    uint32_t granted = 0;           // end of the granted numbers
    uint32_t sent = 0;              // number of this rank's entries sent
    std::optional<uint32_t> ready;  // the segment under which the list is in ready_
  };
  struct Ready {
    uint32_t segment, list;
    bool operator<(const Ready& other) const {
      return std::pair(segment, list) < std::pair(other.segment, other.list);
    }
  };
  // Updates the list's place in ready_, according to its state.
  void look(uint32_t list) {
    const std::optional<Entry> entry = granted_entry(list);
    const auto now = entry ? std::optional(entry->segment) : std::nullopt;
    std::optional<uint32_t>& was = states_[list].ready;
    if (now == was) return;
    const auto place = [&](uint32_t segment) {
      return std::lower_bound(ready_.begin(), ready_.end(), Ready{segment, list});
    };
    if (was) ready_.erase(place(*was));
    if (now) ready_.insert(place(*now), Ready{*now, list});
    was = now;
  }
  uint32_t count(uint32_t list) const {
    const List& l = lists_[list];
    return l.is_whole ? l.length : static_cast<uint32_t>(l.entries.size());
  }
  std::optional<Entry> granted_entry(uint32_t list) const {
    const uint32_t granted = states_[list].granted, sent = states_[list].sent;
    if (sent == count(list)) return std::nullopt;
    const List& l = lists_[list];
    const Entry entry = l.is_whole ? Entry{static_cast<Member>(list), sent, sent} : l.entries[sent];
    return entry.number < granted ? std::optional(entry) : std::nullopt;
  }

  Member self_;
  std::vector<List> lists_;
  std::vector<State> states_;
  std::vector<Ready> ready_;  // lists with a contribution that may be sent, sorted
  mutable uint64_t looks_ = 0;
  uint64_t left_ = 0;
  uint32_t cursor_;  // the list of the last contribution
};

}  // namespace mcast
