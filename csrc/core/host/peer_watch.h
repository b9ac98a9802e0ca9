// For how long the ranks that one lane waits for have not answered.
#pragma once

#include <vector>

#include "base/counters.h"
#include "base/status.h"
#include "host/peer_registry.h"

namespace mcast {

// Whoever drives the lane, every kHostTick while something is waited for: begin(), then look_at()
// for each rank that is awaited.
class PeerWatch {
 public:
  // `counters` outlive this.
  PeerWatch(uint32_t members, Nanos liveness_limit, Counters& counters);

  // When the last look began.
  Nanos looked() const { return looked_; }
  void begin(Nanos now, const std::vector<Member>& awaited);
  // Asks it when that is due. Not ok: it has been silent for the liveness limit.
  Status look_at(Member member, const HostPeer& peer);
  // Of those of this look: what has not answered for a second.
  const std::vector<Member>& unresponsive() const { return unresponsive_; }

 private:
  struct Silence {
    uint64_t asked = 0;  // number of the last question
    Nanos at = 0;        // when it was asked
    Nanos total = 0;     // without an answer
  };

  const Nanos liveness_limit_;
  const Nanos interval_;  // between questions
  Counters& counters_;
  Nanos looked_ = 0;
  Nanos gap_ = 0;                 // since the look before, as it counts
  std::vector<Silence> silence_;  // by member
  std::vector<Member> unresponsive_;
};

}  // namespace mcast
