// What a guarded world has in place of a job's secret file, its kernel's random numbers and the
// store: a secret by number, from which identities of endpoints and keys of groups follow with the
// seed. What ranks say about themselves is the product's record, and is compared as there.
//
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/network_group.h"
#include "engine/rendezvous.h"
#include "engine/security.h"
#include "service/job_surroundings.h"
#include "transport/sim/guarded_streams.h"

namespace mcast::sim {

// Of a world whose setting `security` is not off.
struct WorldGuarding {
  crypto::EpochLimits epochs;                     // of datagrams and of records
  std::function<uint64_t(uint32_t rank)> secret;  // its number; null: all have the same
};

class SimSecurity {
 public:
  // `config`: of all groups of the world.
  SimSecurity(const Config& config, uint64_t seed, WorldGuarding how);

  bool on() const { return mode_ != crypto::Mode::kOff; }
  // kUnavailable: there is no library.
  Status ready() const;
  // What a datagram has more.
  size_t extra() const { return on() ? wire::kGuardedExtra : 0; }

  // For an endpoint of a rank's lane, or of an aggregator's station.
  GuardOptions of_rank(uint32_t rank, size_t endpoint);
  GuardOptions of_station(size_t endpoint);
  // For a rank's record: nothing, or what it says.
  void describe(uint32_t rank, RankRecord& record);
  // What rank 0 concludes from them first: all have its mode and its secret, or who has not.
  Status agree(const std::vector<RankRecord>& records, const Config& config);
  // Of a member that is this rank, by the number of its lanes' endpoints.
  void guard(uint32_t rank, const GroupSpec& spec, const Roster& roster,
             const PerLane<size_t>& endpoints, NetworkGroupParts& parts);
  std::shared_ptr<const service::AskGuard> of_aggregators();

 private:
  uint64_t number_of(uint32_t rank) const { return how_.secret ? how_.secret(rank) : 1; }
  std::shared_ptr<const crypto::JobSecret> secret(uint64_t number, crypto::Role role);
  GuardOptions make(uint64_t number, crypto::Role role, size_t endpoint);

  const crypto::Mode mode_;
  const crypto::Suite suite_;
  const std::string text_;  // the mode's
  const Nanos patience_;
  const uint64_t seed_;
  const WorldGuarding how_;
  std::map<std::pair<uint64_t, crypto::Role>, std::shared_ptr<const crypto::JobSecret>> secrets_;
  std::map<size_t, std::shared_ptr<crypto::OpenBudget>> budgets_;  // by endpoint
};

}  // namespace mcast::sim
