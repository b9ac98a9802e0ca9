// The status of an aggregator, and its text for the status socket (JSON).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/server/admission.h"
#include "base/refusal.h"
#include "base/types.h"

namespace mcast::service {

// Status of one station; totals since it started.
struct StationReport {
  std::string address;  // HOST:PORT
  uint64_t frames_in = 0, bytes_in = 0;
  uint64_t frames_out = 0, bytes_out = 0;
  uint64_t operations = 0;                          // opened by ranks
  uint64_t declined = 0;                            // number of these declined
  uint64_t repeated = 0, stale = 0, malformed = 0;  // frames
  std::array<uint64_t, kCauses> refused{};          // connections and records, by cause
  uint64_t folded_bytes = 0;                        // bytes of contributions, and of racks' sums
  uint64_t staged_bytes = 0;                        // of these, copied: they arrived out of order
  uint32_t open_operations = 0;
  uint32_t blocks = 0;     // segments being folded
  uint64_t memory = 0;     // reserved bytes
  uint32_t connected = 0;  // ranks
  Nanos cpu = 0;           // CPU time of its thread
  // The state of the oldest operation, if there is one: the ranks for which it waits.
  struct Wait {
    Sequence operation = 0;
    Nanos since = 0;              // arrival of the last contribution to its oldest segment
    std::vector<Member> missing;  // ranks
  };
  std::optional<Wait> oldest;
};

struct JobReport {
  uint32_t number = 0;
  std::string name;
  uint32_t ranks = 0, hosts = 0;
  uint64_t quota = 0;  // granted, bytes
  Nanos since = 0;
  bool asked_for = false;            // the asker is still connected
  double rate_in = 0, rate_out = 0;  // bytes per second, recent
  std::vector<StationReport> stations;
  std::vector<double> cpu_shares;  // by station, share of one CPU, recent
};

struct EndedJob {
  uint32_t number = 0;
  std::string name, why;
  Nanos at = 0;
};

struct Report {
  std::string address;  // HOST:PORT, at which groups ask
  Nanos now = 0, started = 0;
  bool draining = false;
  uint64_t quota = 0, quota_per_job = 0, quota_used = 0;
  uint32_t most_jobs = 0, lanes = 0;
  uint64_t rate = 0;
  uint64_t accepted = 0;  // jobs
  std::array<uint64_t, kRefusals> refused{};
  std::vector<JobReport> jobs;
  std::vector<EndedJob> ended;  // the latest ones, oldest first
};

// One JSON object and a line feed. It contains neither uids nor tags: a process that knows those
// can take part.
std::string json_text(const Report& report);

}  // namespace mcast::service
