// Peers of a stream that connected without having been added. A rank that is early is a guest until
// its group is created here, but any other process may be one. There are at most kMost guests, and
// their ids are reused once they are gone.
//
// Used by the lane's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "transport/transport.h"

namespace mcast {

class Guests {
 public:
  struct Guest {
    PeerId id = kNoPeer;
    IpAddress from{};
  };
  static constexpr size_t kMost = 1024;

  // Returns false if only added peers may connect.
  bool welcome() const { return welcome_; }
  void turn_away() { welcome_ = false; }

  bool full() const { return guests_.size() >= kMost; }
  size_t size() const { return guests_.size(); }
  void enter(PeerId id, const IpAddress& from) { guests_.push_back({id, from}); }
  // The guest has been added, or is gone.
  void leave(PeerId id) {
    std::erase_if(guests_, [id](const Guest& g) { return g.id == id; });
  }
  // Returns the guest to displace if there is no room: the oldest of the address with most guests.
  Guest to_displace() const {
    std::map<IpAddress, size_t> counts;
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

  // Returns the id of a guest that is gone for reuse.
  void give_back(PeerId id) { free_.push_back(id); }
  // Returns kNoPeer if no id is free for reuse.
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
