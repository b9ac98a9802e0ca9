// Ranks that deal to stations come with collective/station_deal; until then every operation is
// declined, and owners fold.
#include "service/deal_work.h"

namespace mcast::service {

DealWork deal_work() {
  return [](const wire::Ask&, const wire::StationRoster&, size_t,
            const wire::Descriptor&) -> Result<std::unique_ptr<const aggregation::WorkList>> {
    return Status(Code::kUnavailable, "this version deals nothing to stations");
  };
}

}  // namespace mcast::service
