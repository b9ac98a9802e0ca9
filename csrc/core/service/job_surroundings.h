// What jobs need of whoever runs them.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "service/options.h"
#include "service/station_runner.h"

namespace mcast::service {

struct JobSurroundings {
  DealWork deal;
  // Any thread calls it when Jobs::advance() has something to do.
  std::function<void()> wake;
  // A station that runs, or why the group's transport does not work here. May throw where no
  // memory and no thread can be had.
  std::function<Result<std::unique_ptr<StationRunner>>(StationSpec spec)> run;
  uint64_t process = 0;  // uid of this process
  // File descriptors that the process may ever have open; makes room for some of them.
  std::function<uint64_t()> most_descriptors;
  std::function<void(uint64_t)> make_room;
};

// Threads and transports of this process. `options` outlives the result.
JobSurroundings on_threads(const Options& options, DealWork deal, std::function<void()> wake);

}  // namespace mcast::service
