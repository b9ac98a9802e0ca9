// Liveness: the members that this one watches, when to probe them, and when to consider one lost.
// Pure; time is an argument.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class Liveness {
 public:
  // limit: silence after which a member is lost; interval: silence after which it is pinged, by
  // default an eighth of the limit, at most a second.
  Liveness(std::vector<Member> watched, Nanos limit, Nanos interval = 0);

  // A stream frame arrived from `m` (datagrams are not counted, since pings are answered anyway;
  // unwatched members are ignored).
  void heard(Member m, Nanos now);
  // `m` has sent its goodbye: it is no longer watched.
  void forget(Member m);
  // Watches these members from now on; they have just been pinged. The silence of members that were
  // watched before continues, that of the others starts.
  void watch_only(std::vector<Member> members, Nanos now);
  // Members join one by one: until a member's first frame, or all_met(), it is neither pinged nor
  // lost.
  void await_first_words() { met_.assign(watched_.size(), false); }
  void all_met(Nanos now);
  // Returns false if no frame arrived since await_first_words(). Unwatched members count as met.
  bool met(Member m) const;
  // Operations are in flight (or no longer): silence counts only while they are.
  void set_active(bool active, Nanos now);
  bool active() const { return active_; }

  // Call on every poll; a gap of this process (stopped, descheduled) is credited to everyone, since
  // frames that arrived in the meantime may only be read now.
  void on_poll(Nanos now);

  // Members to ping now.
  void due(Nanos now, std::vector<Member>& ping);
  // A watched member silent beyond the limit; kNoMember if none. Ask only after an empty poll.
  Member silent(Nanos now) const;
  Nanos silence(Member m, Nanos now) const;
  Nanos deadline() const;
  const std::vector<Member>& watched() const { return watched_; }

 private:
  size_t index(Member m) const;

  std::vector<Member> watched_;  // sorted
  std::vector<Nanos> heard_, pinged_;
  std::vector<bool> met_;
  Nanos limit_, interval_;
  bool active_ = false;
  Nanos last_poll_ = 0;
};

}  // namespace mcast
