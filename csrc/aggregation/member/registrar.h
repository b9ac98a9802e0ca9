// Registrar: asks aggregators to fold for groups whose rank 0 is this process, keeps the
// connections that admissions depend on, and asks absent aggregators again. One for all groups of a
// process. It offers the admitted stations to the group, which agrees on them
// (aggregation/member/roster_change.h) and reports events of the stations. A thread in production
// (registrar_thread.h), events in simulations; the common part is in registrar_core.h.
//
// Threads: all calls: any thread, including a lane's; no call waits for an aggregator or a name
// server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/net_address.h"
#include "base/status.h"
#include "crypto/secret.h"
#include "runtime/group.h"
#include "wire/admission.h"
#include "wire/aggregation.h"

namespace mcast {

class Registrar {
 public:
  struct Job {
    std::vector<NetAddress> aggregators;  // at least one
    wire::Ask ask;                        // the registrar fills in roster version and rack
    std::shared_ptr<const crypto::JobSecret> secret;  // of a guarded group; otherwise null
    // Receives all stations that are admitted now, in the order of the aggregators: once those have
    // replied or kGather has passed, and then whenever they have changed. On the registrar's
    // thread; must not block, nor call the registrar.
    std::function<void(std::vector<wire::StationEntry>)> offer;
  };
  // Time for all aggregators to reply before the first offer.
  static constexpr Nanos kGather = kSecond;

  virtual ~Registrar() = default;

  // `group`: its tag, as in the calls below. On an error no aggregator is asked.
  virtual Status enter(uint64_t group, Job job) = 0;
  // As in RosterEvents. No effect after leave().
  virtual void settled(uint64_t group, const std::vector<uint64_t>& uids) = 0;
  virtual void lost(uint64_t group, uint64_t uid, const std::string& why) = 0;
  virtual void parted(uint64_t group, uint64_t uid) = 0;
  virtual std::vector<AggregatorStats> stats(uint64_t group) const = 0;
  // The group is closed: aggregators are informed soon.
  virtual void leave(uint64_t group) = 0;
};

}  // namespace mcast
