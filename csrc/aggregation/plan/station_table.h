// The stations of a group, for each operation. A station is one thread of an aggregator that folds
// for the group (docs/protocol.md); stations are members `size`, size + 1, ... of the group. A set
// of stations is in force from an operation that all ranks have agreed on, so all ranks deal out an
// operation alike. A station that is lost stays in its set and is marked out permanently. Pure
// data.
//
// A member number names one stream address as long as the group lives. A station that comes back,
// as another process or over another connection, gets a new number. A station that is in several
// consecutive sets keeps its number.
//
// Threads: the lane's.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace mcast {

struct Station {
  Member member = kNoMember;  // group size or above
  uint32_t capacity = 0;      // 1/65536 of a rank's link
  uint64_t hash = 0;          // breaks ties in dealing out
  std::string rack;
  bool out = false;  // lost: owners fold the segments that are dealt to it
};

struct StationSet {
  uint32_t version = 0;
  Sequence from = 0;     // first operation
  bool resting = false;  // stations fold nothing
  std::vector<Station> stations;

  const Station* find(Member member) const {
    for (const Station& s : stations) {
      if (s.member == member) return &s;
    }
    return nullptr;
  }
};

class StationTable {
 public:
  // Most losses that are kept of sets that are not installed here yet.
  static constexpr size_t kMostEarly = 1024;

  // The set in force for an operation; null if the group has no stations then. Valid until
  // released() passes the set.
  const StationSet* of(Sequence sequence) const;
  // The latest set; null if there has never been one.
  const StationSet* latest() const { return sets_.empty() ? nullptr : &sets_.back(); }

  // Returns false, without effect, if the set is not newer than the last one, in version and in
  // first operation. Losses that were reported early are applied.
  bool install(StationSet set);
  // A station of a set is lost. Returns true the first time: the others must be informed. The loss
  // is kept for a set that is not installed yet. Returns false if the set is forgotten or lacks the
  // station.
  bool lose(uint32_t version, Member station);
  // Versions of the sets in which the station is not out.
  std::vector<uint32_t> versions_with(Member station) const;
  // All operations below are complete everywhere: forgets sets that no operation needs any more.
  void released(Sequence base);

  // State of this rank's connection to a station, which need not be in a set.
  struct Contact {
    bool answered = false;  // it has sent a frame
    Nanos heard = 0;        // time of its last frame
    Status down;            // why it cannot be reached any more; ok() until then
  };
  // Creates or removes a contact. The caller calls Port::meet() and part().
  void meet(Member station) { contacts_.try_emplace(station); }
  void part(Member station) { contacts_.erase(station); }
  // Null if meet() was not called.
  const Contact* contact(Member station) const;
  void heard(Member station, Nanos now);
  // Returns true the first time.
  bool down(Member station, const Status& why);

 private:
  struct Loss {
    uint32_t version;
    Member station;
    bool operator==(const Loss&) const = default;
  };
  std::deque<StationSet> sets_;  // references to elements stay valid
  std::deque<Loss> early_;
  std::map<Member, Contact> contacts_;
};

}  // namespace mcast
