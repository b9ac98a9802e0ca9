// Computes which segments of an operation belong to a station: known once the ranks have sent it
// the roster by which the operation is dealt. Versions come and go while the station stays. Pure.
//
// Not thread-safe: used by the station's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "aggregation/fold/operation.h"
#include "wire/admission.h"
#include "wire/aggregation.h"

namespace mcast::service {

// Returns the list of station `index` of a roster for one operation, as the ranks deal it; or why
// there is none. `members`: names of the roster's stations in the list; `room`: bytes that it may
// take.
using DealWork = std::function<Result<std::unique_ptr<const aggregation::WorkList>>(
    const wire::Ask& ask, const wire::StationRoster& roster, std::span<const Member> members,
    size_t index, const wire::Descriptor& descriptor, size_t room)>;

class StationPlanner final : public aggregation::Planner {
 public:
  // Number of versions kept: operations of the last one are open while the next one begins.
  static constexpr size_t kVersions = 4;

  // `uid`: of the station's stream endpoint.
  StationPlanner(const wire::Ask& ask, uint64_t uid, DealWork deal)
      : ask_(ask), uid_(uid), deal_(std::move(deal)) {}

  // A rank has sent a roster. A repeated one changes nothing. Returns an error if it differs from
  // another rank's roster of this version, or does not name the station.
  Status learn(const wire::StationRoster& roster);
  // Stations of all rosters so far are numbered from the number of ranks on; returns this one's
  // number.
  Member member_of(const wire::StationEntry& station) const { return members_.at(station.uid); }

  Result<std::unique_ptr<const aggregation::WorkList>> plan(uint32_t roster,
                                                            const wire::Descriptor& descriptor,
                                                            size_t room) const override;

 private:
  struct Known {
    wire::StationRoster roster;
    size_t index = 0;             // this station's index
    std::vector<Member> members;  // of all stations
  };
  const wire::Ask ask_;
  const uint64_t uid_;
  const DealWork deal_;
  std::deque<Known> known_;             // by version, ascending
  std::map<uint64_t, Member> members_;  // by uid
};

}  // namespace mcast::service
