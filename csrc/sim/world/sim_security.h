// Replaces, in a guarded world, a job's secret file, the kernel's random numbers and the store: a
// secret is a number, from which, with the seed, the identities of endpoints and the keys of groups
// are derived. Ranks describe themselves with the product's record, which is compared as in the
// product.
//
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aggregation/server/job_surroundings.h"
#include "runtime/network_group.h"
#include "runtime/rendezvous.h"
#include "runtime/security.h"
#include "sim/network/guarded_streams.h"

namespace mcast::sim {

// Guard parameters of a world whose setting `security` is not off.
struct WorldGuarding {
  crypto::EpochLimits epochs;  // of datagrams and of records
  // Number of a rank's secret; null: all ranks have the same.
  std::function<uint64_t(uint32_t rank)> secret;
};

class SimSecurity {
 public:
  // `config`: settings of all groups of the world.
  SimSecurity(const Config& config, uint64_t seed, WorldGuarding how);

  bool on() const { return mode_ != crypto::Mode::kOff; }
  // kUnavailable: no crypto library was found.
  Status ready() const;
  // Extra bytes of a guarded datagram.
  size_t extra() const { return on() ? wire::kGuardedExtra : 0; }

  // Options for an endpoint of a rank's lane, or of an aggregator's station.
  GuardOptions of_rank(uint32_t rank, size_t endpoint);
  GuardOptions of_station(size_t endpoint);
  // Fills in a rank's record; leaves it unchanged if the world is not guarded.
  void describe(uint32_t rank, RankRecord& record);
  // The check that rank 0 makes first: all ranks have its mode and its secret; otherwise the error
  // names those that do not.
  Status agree(const std::vector<RankRecord>& records, const Config& config);
  // Guards the member that is this rank, and returns its secret; null if the world is not guarded.
  // `endpoints`: numbers of its lanes' endpoints.
  std::shared_ptr<const crypto::JobSecret> guard(uint32_t rank, const GroupSpec& spec,
                                                 const Roster& roster,
                                                 const PerLane<size_t>& endpoints,
                                                 NetworkGroupParts& parts);
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
