// A result as a line of JSON, for programs. Threads: any.
#pragma once

#include <optional>
#include <string>

#include "simulation/experiment.h"

namespace mcast::sim {

// Of the JSON: counted up when a name changes its meaning or goes.
inline constexpr uint64_t kReportSchema = 2;

struct ReportOptions {
  bool links = false;          // bytes of each link, by class
  std::optional<double> wall;  // seconds that it took to compute; without it runs compare equal
};

// One object, no line feed. Times are nanoseconds, amounts wire bytes. What does not apply (a state
// of ranks where only schedules ran) is 0 or missing.
std::string report_json(const ExperimentSpec& spec, const OpResult& result,
                        const ReportOptions& options);
// The same for an experiment that could not be run.
std::string error_json(std::string_view text, const Status& why);

}  // namespace mcast::sim
