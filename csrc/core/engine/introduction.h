// How ranks introduce themselves when a group is made: a record of each through the store.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/lane_thread.h"
#include "engine/rendezvous.h"

namespace mcast {

inline constexpr size_t kLanes = 2;
using Lanes = std::array<std::shared_ptr<LaneThread>, kLanes>;  // multicast, reduce

// Writes into `record` where the lanes can be reached and what they carry. False: they are stopped.
bool describe_lanes(const Lanes& lanes, RankRecord& record);

// Publishes this rank's record under "<prefix>/<rank>" and reads everybody's, by rank.
Result<std::vector<RankRecord>> exchange(const GroupSpec& spec, KeyValueStore& store,
                                         const std::string& prefix, const RankRecord& mine,
                                         Nanos start, Nanos deadline);

}  // namespace mcast
