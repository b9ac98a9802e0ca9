// Which stations a group has from which operation on. A station is one thread of an aggregator that
// folds for the group (docs/protocol.md); stations are members `size`, size + 1, ... of it. A set
// of stations is in force from an operation that all ranks have agreed on, so all of them deal out
// an operation alike; a station of a set that is lost stays in it and is out, for ever. Pure data.
//
// Member numbers: one names one stream address as long as the group lives. A station that comes
// back, as another process or over another connection, gets a number that none has had; one that
// stays from set to set keeps its number.
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
  Member member = kNoMember;  // size of the group, or more
  uint32_t capacity = 0;      // 1/65536 of a rank's link
  uint64_t hash = 0;          // for ties in dealing out
  std::string rack;
  bool out = false;  // lost: whatever is dealt to it, the owners fold
};

struct StationSet {
  uint32_t version = 0;
  Sequence from = 0;     // first operation
  bool resting = false;  // they fold nothing
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
  // Losses of sets that are not installed here yet: at most so many are kept.
  static constexpr size_t kMostEarly = 1024;

  // The set in force for an operation; null: the group has no stations then. Valid until
  // released() passes the set.
  const StationSet* of(Sequence sequence) const;
  // The latest; null: none ever.
  const StationSet* latest() const { return sets_.empty() ? nullptr : &sets_.back(); }

  // False, and nothing happens: not newer, in version and first operation, than the one before.
  // Losses that came before are applied.
  bool install(StationSet set);
  // A station of a set is lost. True the first time: others are to be told. A set that is not
  // installed yet will know; one that is forgotten or has no such station: false.
  bool lose(uint32_t version, Member station);
  // Of the sets in which the station is not out.
  std::vector<uint32_t> versions_with(Member station) const;
  // All operations below are complete everywhere: sets that none needs any more are forgotten.
  void released(Sequence base);

  // What this rank knows of its connection to a station, in a set or not yet.
  struct Contact {
    bool answered = false;  // a frame has come from it
    Nanos heard = 0;        // when, the last
    Status down;            // why it cannot be reached any more; ok(): it may
  };
  // Begins to keep a contact; Port::meet() is the caller's.
  void meet(Member station) { contacts_.try_emplace(station); }
  void part(Member station) { contacts_.erase(station); }
  // Null: not met.
  const Contact* contact(Member station) const;
  void heard(Member station, Nanos now);
  // True the first time.
  bool down(Member station, const Status& why);

 private:
  struct Loss {
    uint32_t version;
    Member station;
    bool operator==(const Loss&) const = default;
  };
  std::deque<StationSet> sets_;  // references to elements stay
  std::deque<Loss> early_;
  std::map<Member, Contact> contacts_;
};

}  // namespace mcast
