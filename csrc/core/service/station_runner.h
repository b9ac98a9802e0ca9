// A station that runs, as the service sees it: on a thread of its own (station_thread.h), or driven
// by the events of a simulation.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "aggregation/job_params.h"
#include "service/report.h"
#include "service/station_planner.h"
#include "wire/admission.h"

namespace mcast::service {

// How many jobs of the process move data now. Any thread.
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
  // The answer of ended() or finished() has changed. Where the station runs; must not block.
  std::function<void()> on_end;
};

// Any thread.
class StationRunner {
 public:
  virtual ~StationRunner() = default;
  // Where its stream endpoint is; capacity is the caller's to set.
  virtual wire::Accept::Station where() const = 0;
  virtual uint32_t largest_datagram() const = 0;
  // The station says goodbye to its ranks, at most for `patience`, and ends. Also needed where it
  // has ended by itself. Any number of times: the first one counts.
  virtual void end(Nanos patience) = 0;
  // Why the job has ended here; nothing: it has not.
  virtual std::optional<std::string> ended() const = 0;
  // It has nothing more to do: the destructor does not wait.
  virtual bool finished() const = 0;
  // As of a moment ago.
  virtual StationReport report() const = 0;
};

}  // namespace mcast::service
