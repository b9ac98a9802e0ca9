// A result as a line of JSON, for programs. Threads: any.
#pragma once

#include <optional>
#include <string>

#include "sim/world/experiment.h"

namespace mcast::sim {

// Schema version of the JSON: incremented when a name changes its meaning or is removed.
inline constexpr uint64_t kReportSchema = 2;

struct ReportOptions {
  bool links = false;  // bytes of each link, by class
  // Seconds of computing; without it, equal runs give equal lines.
  std::optional<double> wall;
};

// Returns one object without a line feed. Times are nanoseconds, amounts are wire bytes. Values
// that do not apply (a state of ranks where only schedules ran) are 0 or missing.
std::string report_json(const ExperimentSpec& spec, const OpResult& result,
                        const ReportOptions& options);
// The same for an experiment that could not be run.
std::string error_json(std::string_view text, const Status& why);

}  // namespace mcast::sim
