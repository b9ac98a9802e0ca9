// The reach probe at group creation: does every member hear every other by multicast, with
// datagrams of full chunk size? It is also the barrier of the creation. Pure; time is an argument.
#pragma once

#include <string>
#include <vector>

#include "base/types.h"

namespace mcast {

class ReachProbe {
 public:
  // `multicast` false: only the barrier (the group is to use the ring whatever is heard).
  ReachProbe(Member self, uint32_t members, uint32_t children, bool multicast, Nanos timeout,
             Nanos now);

  void on_probe(Member from);
  // A child's verdict about its subtree: hears all, or the reason why not.
  void on_status(uint32_t child, bool ok, const std::string& why);

  // A probe datagram is due.
  bool send_due(Nanos now);
  // The subtree's verdict, once: to be sent up, or acted on at the top. False: not yet.
  bool verdict(Nanos now, bool& ok, std::string& why);
  Nanos deadline() const;
  // Whom this member does not hear, which children have not spoken; empty: nobody in particular.
  std::string open_text(Member first_child) const;

 private:
  std::string unheard() const;

  Member self_;
  std::vector<bool> heard_;
  uint32_t missing_;
  std::vector<int> child_;  // -1 open, 0 bad, 1 good
  std::string why_;
  bool multicast_, told_ = false;
  Nanos give_up_, next_send_, interval_;
};

}  // namespace mcast
