// The ranks' side of in-network aggregation, for one GroupMaker: stations in every group, and a
// registrar that asks aggregators.
#pragma once

#include <memory>

#include "aggregation/member/name_lookup.h"
#include "runtime/aggregation.h"
#include "runtime/context.h"

namespace mcast {

// Resolves names of aggregators to addresses that `may_reach` allows, since a client of an engine
// names them, too. Null: to all.
NameLookup::Resolve resolve_within(const MayReach& may_reach);

// `may_reach` checks the addresses of aggregators; null: anywhere.
std::unique_ptr<Aggregation> make_aggregation(const MayReach& may_reach);

}  // namespace mcast
