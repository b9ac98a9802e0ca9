// Registrar: asks aggregators to fold for groups of which this process is rank 0, holds the
// connections that admissions last as long as, and asks those again that are absent. One for all
// groups of a process. What is admitted it offers to the group, which agrees on it
// (collective/roster_change.h) and tells what becomes of the stations. A thread in the product
// (registrar_thread.h), events in simulations; what both do is in registrar_core.h.
//
// Threads: all calls: any thread, also a lane's; none waits for an aggregator or for a name server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/net_address.h"
#include "base/status.h"
#include "crypto/secret.h"
#include "engine/group.h"
#include "wire/admission.h"
#include "wire/aggregation.h"

namespace mcast {

class Registrar {
 public:
  struct Job {
    std::vector<NetAddress> aggregators;              // one at least
    wire::Ask ask;                                    // its roster version and rack are filled in
    std::shared_ptr<const crypto::JobSecret> secret;  // of a guarded group; null: it is none
    // All stations that are admitted now, in the order of the aggregators: once those have
    // answered, or after kGather; then whenever they have changed. On the registrar's thread; must
    // not block, nor call the registrar.
    std::function<void(std::vector<wire::StationEntry>)> offer;
  };
  // For all aggregators to answer before the first offer.
  static constexpr Nanos kGather = kSecond;

  virtual ~Registrar() = default;

  // `group`: its tag, as for the calls below. Not ok: nobody is asked.
  virtual Status enter(uint64_t group, Job job) = 0;
  // As RosterEvents. After leave(): nothing happens.
  virtual void settled(uint64_t group, const std::vector<uint64_t>& uids) = 0;
  virtual void lost(uint64_t group, uint64_t uid, const std::string& why) = 0;
  virtual void parted(uint64_t group, uint64_t uid) = 0;
  virtual std::vector<AggregatorStats> stats(uint64_t group) const = 0;
  // The group is closed: aggregators are told soon.
  virtual void leave(uint64_t group) = 0;
};

}  // namespace mcast
