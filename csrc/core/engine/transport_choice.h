// Which transport a group uses: decided from all ranks' records, so that all decide alike.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/rendezvous.h"

namespace mcast {

struct TransportChoice {
  bool verbs = false;
  std::string reason;  // for stats: "asked for", "every rank of 4 hosts has RDMA", ...
};

// `setting`: the agreed setting `transport`. verbs where a rank has none: kUnavailable that names
// the rank, its host and its reason. RankRecord::verbs tells who has it.
Result<TransportChoice> choose_transport(const std::vector<RankRecord>& records,
                                         const std::string& setting);

// What a rank writes into RankRecord::verbs: empty if verbs works here, else why not. Opens the
// device for a moment where `setting` leaves a choice.
std::string verbs_problem(const Config& config);

}  // namespace mcast
