// A station checks its segments once per deadline and reports the one that has been idle for the
// longest, if it has been idle for a deadline. So the age in the first report limits the time until
// the next, whatever the deadline is; twice that allows for the transfer.
#include "aggregation/member/straggler_reports.h"

#include <algorithm>

#include "collective/error_text.h"

namespace mcast {

void StragglerReports::on_report(Member station, Sequence sequence, const wire::AggWait& wait,
                                 const Hosts& hosts, Nanos now) {
  const Nanos age = static_cast<Nanos>(wait.age_ms) * kMilli;
  Report report{sequence, {}, now - age, now + 2 * std::max(age, kMilli)};
  for (uint32_t m = 0; m < hosts.members(); m++) {
    const uint32_t host = hosts.host_of(static_cast<Member>(m));
    if (host / 64 < wait.missing.size() && (wait.missing[host / 64] >> host % 64 & 1u) != 0) {
      report.ranks.push_back(static_cast<Member>(m));
    }
  }
  if (report.ranks.empty()) {
    reports_.erase(station);
  } else {
    reports_.insert_or_assign(station, std::move(report));
  }
}

std::optional<AggregationReport::Waiting> StragglerReports::oldest(Sequence base, Nanos now) const {
  std::optional<AggregationReport::Waiting> out;
  for (const auto& [station, report] : reports_) {
    if (report.sequence < base || now > report.until) continue;
    if (out && report.sequence > out->sequence) continue;
    if (!out || report.sequence < out->sequence) out = {report.sequence, {}, 0};
    out->time = std::max(out->time, now - report.since);
    out->ranks.insert(out->ranks.end(), report.ranks.begin(), report.ranks.end());
  }
  if (!out) return out;
  std::sort(out->ranks.begin(), out->ranks.end());
  out->ranks.erase(std::unique(out->ranks.begin(), out->ranks.end()), out->ranks.end());
  return out;
}

std::string StragglerReports::text(Sequence base, Sequence sequence, Nanos now) const {
  const auto waiting = oldest(base, now);
  if (!waiting || waiting->sequence > sequence) return "";
  return "rank(s) " + ranks_text(waiting->ranks) + ": " + std::to_string(waiting->time / kMilli) +
         " ms";
}

}  // namespace mcast
