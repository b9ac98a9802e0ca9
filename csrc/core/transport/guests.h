// The peers of a stream that nobody has added: they came by themselves. A rank that is early is one
// until its group is made here; so may anybody be. There are at most kMost of them, and their ids
// are given to others once they are gone.
//
// Used by the lane's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "transport/transport.h"

namespace mcast {

class Guests {
 public:
  struct Guest {
    PeerId id = kNoPeer;
    uint32_t from = 0;  // its address
  };
  static constexpr size_t kMost = 1024;

  // False: only who has been added gets in.
  bool welcome() const { return welcome_; }
  void turn_away() { welcome_ = false; }

  bool full() const { return guests_.size() >= kMost; }
  size_t size() const { return guests_.size(); }
  void enter(PeerId id, uint32_t from) { guests_.push_back({id, from}); }
  // It has been added, or is gone.
  void leave(PeerId id) {
    std::erase_if(guests_, [id](const Guest& g) { return g.id == id; });
  }
  // Who makes room where there is none: the oldest of the address with most.
  Guest to_displace() const {
    std::unordered_map<uint32_t, size_t> counts;
    for (const Guest& g : guests_) ++counts[g.from];
    Guest found;
    size_t most = 0;
    for (const Guest& g : guests_) {
      if (counts[g.from] > most) {
        found = g;
        most = counts[g.from];
      }
    }
    return found;
  }

  // Ids of those that are gone.
  void give_back(PeerId id) { free_.push_back(id); }
  // kNoPeer: none has been given back.
  PeerId take_id() {
    if (free_.empty()) return kNoPeer;
    const PeerId id = free_.back();
    free_.pop_back();
    return id;
  }

 private:
  bool welcome_ = true;
  std::vector<Guest> guests_;  // in the order in which they came
  std::vector<PeerId> free_;
};

}  // namespace mcast
