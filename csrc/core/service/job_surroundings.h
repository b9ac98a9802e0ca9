// What jobs need of whoever runs them.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "crypto/key.h"
#include "crypto/secret.h"
#include "service/options.h"
#include "service/station_runner.h"

namespace mcast::service {

// Of an aggregator of guarded groups.
struct AskGuard {
  std::string mode;
  std::shared_ptr<const crypto::JobSecret> secret;  // of its role
  crypto::Key nonces;  // random: makes a nonce of a connection's number

  const crypto::Key& key() const { return secret->record(); }
};

struct JobSurroundings {
  DealWork deal;
  // Any thread calls it when Jobs::advance() has something to do.
  std::function<void()> wake;
  // A station that runs, or why the group's transport does not work here. May throw where no
  // memory and no thread can be had.
  std::function<Result<std::unique_ptr<StationRunner>>(StationSpec spec)> run;
  uint64_t process = 0;                   // uid of this process
  std::shared_ptr<const AskGuard> guard;  // null: groups are not guarded
  // File descriptors that the process may ever have open; makes room for some of them.
  std::function<uint64_t()> most_descriptors;
  std::function<void(uint64_t)> make_room;
};

// What the settings of an aggregator say about security. Null: off.
Result<std::shared_ptr<const AskGuard>> guard_of(const Config& config);

// Threads and transports of this process. `options` outlives the result.
JobSurroundings on_threads(const Options& options, DealWork deal, std::function<void()> wake,
                           std::shared_ptr<const AskGuard> guard = nullptr);

}  // namespace mcast::service
