// StragglerReports: what stations tell member 0 of contributions that stay away (AggStale). A
// station repeats it as long as it holds, so a report that is not repeated is over. Pure; time is
// an argument.
#pragma once

#include <map>

#include "collective/aggregation_report.h"
#include "protocol/hosts.h"
#include "wire/aggregation.h"

namespace mcast {

class StragglerReports {
 public:
  // `wait`: of a segment of operation `sequence`, by contributor, which are `hosts`.
  void on_report(Member station, Sequence sequence, const wire::AggWait& wait, const Hosts& hosts,
                 Nanos now);
  // Of the oldest operation that is not over, which all before `base` are. Where ranks of a host
  // contribute together all of them are named: it may be any.
  std::optional<AggregationReport::Waiting> oldest(Sequence base, Nanos now) const;
  // "rank(s) 5, 7: 830 ms"; empty: nobody is waited for in operation `sequence` or an earlier one.
  std::string text(Sequence base, Sequence sequence, Nanos now) const;

 private:
  struct Report {
    Sequence sequence;
    std::vector<Member> ranks;
    Nanos since;  // the last contribution
    Nanos until;  // by then it is repeated, or over
  };
  std::map<Member, Report> reports_;  // by station, the latest
};

}  // namespace mcast
