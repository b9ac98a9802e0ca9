// A process's knowledge of the networks of its groups: the one agreed on last, with which the next
// group begins, and the addresses of other hosts that have replied.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/context.h"
#include "runtime/network_choice.h"

namespace mcast {

// Thread-safe.
class NetworkMemory {
 public:
  // `may_reach`: null: all addresses are allowed.
  explicit NetworkMemory(MayReach may_reach) : may_reach_(std::move(may_reach)) {}

  std::string last() const;
  void note(const std::string& network);

  // Whether the hosts of these addresses answer an attempt to connect, be it by a refusal; those
  // not yet known are tried all at once, for at most 2 s. Blocks.
  bool reaches(const OwnAddress& own, const std::vector<Endpoint>& far);

 private:
  const MayReach may_reach_;
  mutable std::mutex mutex_;
  std::string last_;
  std::map<IpAddress, bool> answered_;
};

}  // namespace mcast
