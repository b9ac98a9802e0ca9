// The ranks' side of in-network aggregation, for one GroupMaker: stations in every group, and a
// registrar that asks aggregators.
#pragma once

#include <memory>

#include "runtime/aggregation.h"
#include "runtime/context.h"

namespace mcast {

// `may_reach` checks the addresses of aggregators; null: anywhere.
std::unique_ptr<Aggregation> make_aggregation(const MayReach& may_reach);

}  // namespace mcast
