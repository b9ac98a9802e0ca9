// What an aggregator tells of itself, and the text of it that the status socket gives (JSON).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/refusal.h"
#include "base/types.h"
#include "service/admission.h"

namespace mcast::service {

// Of one station; totals since it began.
struct StationReport {
  std::string address;  // HOST:PORT
  uint64_t frames_in = 0, bytes_in = 0;
  uint64_t frames_out = 0, bytes_out = 0;
  uint64_t operations = 0;                          // that ranks have opened
  uint64_t declined = 0;                            // of these
  uint64_t repeated = 0, stale = 0, malformed = 0;  // frames
  std::array<uint64_t, kCauses> refused{};          // connections and records, by cause
  uint64_t folded_bytes = 0;                        // of contributions, and of racks' sums
  uint64_t staged_bytes = 0;                        // of these, copied: their turn had not come
  uint32_t open_operations = 0;
  uint32_t blocks = 0;     // segments that are being folded
  uint64_t memory = 0;     // bytes that are reserved
  uint32_t connected = 0;  // ranks
  Nanos cpu = 0;           // that its thread has used
  // What the oldest operation waits for, if there is one.
  struct Wait {
    Sequence operation = 0;
    Nanos since = 0;              // when the last contribution to its oldest segment came
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
  double rate_in = 0, rate_out = 0;  // bytes per second, of late
  std::vector<StationReport> stations;
  std::vector<double> cpu_shares;  // by station, of one CPU, of late
};

struct EndedJob {
  uint32_t number = 0;
  std::string name, why;
  Nanos at = 0;
};

struct Report {
  std::string address;  // HOST:PORT, where groups ask
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

// One JSON object and a line feed. Neither uids nor tags are in it: who knows those can take part.
std::string json_text(const Report& report);

}  // namespace mcast::service
