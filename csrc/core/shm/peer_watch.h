// Measures how long the ranks that one lane waits for have not replied.
#pragma once

#include <vector>

#include "base/counters.h"
#include "base/status.h"
#include "shm/peer_registry.h"

namespace mcast {

// Used by the driver of the lane, every kHostTick while it waits: begin(), then look_at() for each
// awaited rank.
class PeerWatch {
 public:
  // `counters` outlive this.
  PeerWatch(uint32_t members, Nanos liveness_limit, Counters& counters);

  // Time at which the last round of checks began.
  Nanos looked() const { return looked_; }
  void begin(Nanos now, const std::vector<Member>& awaited);
  // Sends it a question when one is due. Returns an error if it has been silent for the liveness
  // limit.
  Status look_at(Member member, const HostPeer& peer);
  // Ranks of this round of checks that have not replied for a second.
  const std::vector<Member>& unresponsive() const { return unresponsive_; }

 private:
  struct Silence {
    uint64_t asked = 0;  // number of the last question
    Nanos at = 0;        // when it was asked
    Nanos total = 0;     // total time without a reply
  };

  const Nanos liveness_limit_;
  const Nanos interval_;  // between questions
  Counters& counters_;
  Nanos looked_ = 0;
  Nanos gap_ = 0;                 // time since the previous round, as counted
  std::vector<Silence> silence_;  // by member
  std::vector<Member> unresponsive_;
};

}  // namespace mcast
