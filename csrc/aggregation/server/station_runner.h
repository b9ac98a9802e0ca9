// The service's interface to a running station: on a thread of its own (station_thread.h), or
// driven by the events of a simulation.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "aggregation/fold/job_params.h"
#include "aggregation/server/report.h"
#include "aggregation/server/station_planner.h"
#include "wire/admission.h"

namespace mcast::service {

// Counts the jobs of the process that move data now. Any thread.
class BusyJobs {
 public:
  // One job's part of the count: busy while one of its stations is.
  class Job {
   public:
    explicit Job(BusyJobs& all) : all_(all) {}
    void station_begins() {
      if (stations_.fetch_add(1) == 0) all_.jobs_.fetch_add(1);
    }
    void station_ends() {
      if (stations_.fetch_sub(1) == 1) all_.jobs_.fetch_sub(1);
    }
    uint32_t jobs() const { return std::max(1u, all_.jobs_.load()); }

   private:
    BusyJobs& all_;
    std::atomic<uint32_t> stations_{0};
  };

 private:
  std::atomic<uint32_t> jobs_{0};
};

struct StationSpec {
  std::string name;  // of the thread, at most 15 bytes
  wire::Ask ask;
  aggregation::JobParams params;
  DealWork deal;
  std::shared_ptr<BusyJobs::Job> busy;
  // The result of ended() or finished() has changed. Called where the station runs; must not block.
  std::function<void()> on_end;
};

// Any thread.
class StationRunner {
 public:
  virtual ~StationRunner() = default;
  // Address of its stream endpoint; the caller sets the capacity.
  virtual wire::Accept::Station where() const = 0;
  virtual uint32_t largest_datagram() const = 0;
  // The station sends the goodbye to its ranks, for at most `patience`, and ends. Also needed if it
  // has ended by itself. May be called any number of times: the first call counts.
  virtual void end(Nanos patience) = 0;
  // Returns why the job has ended here; empty if it has not.
  virtual std::optional<std::string> ended() const = 0;
  // Returns true if it has no more work: the destructor does not wait.
  virtual bool finished() const = 0;
  // As of a moment ago.
  virtual StationReport report() const = 0;
};

}  // namespace mcast::service
