// Which transport a group uses: decided from all ranks' records, so that all decide alike.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/rendezvous.h"
#include "transport/registry.h"

namespace mcast {

struct TransportChoice {
  const TransportType* type = &fallback_transport();
  std::string reason;  // for stats: "verbs was asked for", "every rank of 4 hosts has ...", ...
};

// `setting`: the agreed setting `transport`. One that was asked for where a rank has none:
// kUnavailable that names the rank, its host and its reason. RankRecord::problems tells who has
// what. `only`: the one transport to decide about, besides the fallback; null: any.
Result<TransportChoice> choose_transport(const std::vector<RankRecord>& records,
                                         const std::string& setting,
                                         const TransportType* only = nullptr);

// What a rank writes into RankRecord::problems: empty if the transport works here, else why not.
// Opens the device for a moment where the settings leave a choice.
std::string transport_problem(const TransportType& type, const Config& config);

}  // namespace mcast
