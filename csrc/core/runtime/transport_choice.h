// Chooses the transport of a group from all ranks' records, so that all ranks choose the same.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/rendezvous.h"
#include "transport/registry.h"

namespace mcast {

struct TransportChoice {
  const TransportType* type = &fallback_transport();
  std::string reason;  // for stats: "the setting transport is verbs", "no verbs on rank 3 ...", ...
};

// `setting`: the agreed setting `transport`. If a rank lacks the requested transport: kUnavailable
// with the rank, its host and its reason. RankRecord::problems lists what each rank has. `only`:
// the one transport to decide about, besides the fallback; null: any.
Result<TransportChoice> choose_transport(const std::vector<RankRecord>& records,
                                         const std::string& setting,
                                         const TransportType* only = nullptr);

// The text of a rank for RankRecord::problems: empty if the transport works here, otherwise the
// reason. Opens the device for a moment if the settings leave a choice.
std::string transport_problem(const TransportType& type, const Config& config);

}  // namespace mcast
