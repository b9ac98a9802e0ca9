// Who is alive: which members this one watches, when to probe them, when to give one up. Pure; time
// is an argument.
#pragma once

#include <vector>

#include "base/types.h"

namespace mcast {

class Liveness {
 public:
  // limit: silence that counts as death; interval: silence after which a member is pinged, by
  // default an eighth of that, at most a second.
  Liveness(std::vector<Member> watched, Nanos limit, Nanos interval = 0);

  // A stream frame arrived from `m` (datagrams are not counted: pings are answered anyway;
  // unwatched members are ignored).
  void heard(Member m, Nanos now);
  // `m` has said goodbye: it is watched no more.
  void forget(Member m);
  // These are watched from now on, and have just been pinged. Silence of those that were watched
  // before goes on, that of others begins.
  void watch_only(std::vector<Member> members, Nanos now);
  // Members come one by one: until a first word, or all_met(), nobody is pinged or missed.
  void await_first_words() { met_.assign(watched_.size(), false); }
  void all_met(Nanos now);
  // False: not heard of since await_first_words(). Unwatched members count as met.
  bool met(Member m) const;
  // Something is in flight (or no longer): silence counts only while it is.
  void set_active(bool active, Nanos now);
  bool active() const { return active_; }

  // Call on every poll; a gap of ours (stopped process, descheduled) is credited to everyone, since
  // what they sent in the meantime may only now be read.
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
