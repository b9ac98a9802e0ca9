// StragglerReports: missing contributions, as stations report them to member 0 (AggStale). A
// station repeats its report while the contribution is missing, so a report that is not repeated
// expires. Pure; time is an argument.
#pragma once

#include <map>

#include "collective/aggregation_report.h"
#include "protocol/hosts.h"
#include "wire/aggregation.h"

namespace mcast {

class StragglerReports {
 public:
  // `wait`: about a segment of operation `sequence`, by contributor. `hosts`: the contributors.
  void on_report(Member station, Sequence sequence, const wire::AggWait& wait, const Hosts& hosts,
                 Nanos now);
  // The wait of the oldest unfinished operation; all operations before `base` are finished. If the
  // ranks of a host contribute together, all of them are named, because any may be the late one.
  std::optional<AggregationReport::Waiting> oldest(Sequence base, Nanos now) const;
  // "rank(s) 5, 7: 830 ms"; empty if no rank is awaited in operation `sequence` or an earlier one.
  std::string text(Sequence base, Sequence sequence, Nanos now) const;

 private:
  struct Report {
    Sequence sequence;
    std::vector<Member> ranks;
    Nanos since;  // time of the last contribution
    Nanos until;  // expires then, unless repeated
  };
  std::map<Member, Report> reports_;  // by station: the latest
};

}  // namespace mcast
