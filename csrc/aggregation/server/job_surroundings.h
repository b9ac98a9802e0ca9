// Interfaces that jobs need from the program that runs them.
#pragma once

#include <functional>
#include <memory>

#include "aggregation/server/options.h"
#include "aggregation/server/station_runner.h"
#include "base/status.h"
#include "crypto/key.h"
#include "crypto/secret.h"

namespace mcast::service {

// Secrets of an aggregator of guarded groups.
struct AskGuard {
  std::string mode;
  std::shared_ptr<const crypto::JobSecret> secret;  // of the aggregator's role
  crypto::Key nonces;  // random: derives a nonce from a connection's number

  const crypto::Key& key() const { return secret->record(); }
};

struct JobSurroundings {
  DealWork deal;
  // Called by any thread when Jobs::advance() has something to do.
  std::function<void()> wake;
  // Returns a running station, or why the group's transport does not work here. May throw if there
  // is no memory or no thread.
  std::function<Result<std::unique_ptr<StationRunner>>(StationSpec spec)> run;
  uint64_t process = 0;                   // uid of this process
  std::shared_ptr<const AskGuard> guard;  // null if groups are not guarded
  // `most_descriptors`: maximum that the process may ever have open. `make_room`: raises the soft
  // limit for that many more.
  std::function<uint64_t()> most_descriptors;
  std::function<void(uint64_t)> make_room;
};

// Reads the security settings of an aggregator. Null: off.
Result<std::shared_ptr<const AskGuard>> guard_of(const Config& config);

// Runs stations on threads of this process, with its transports. `options` must outlive the result.
JobSurroundings on_threads(const Options& options, DealWork deal, std::function<void()> wake,
                           std::shared_ptr<const AskGuard> guard = nullptr);

}  // namespace mcast::service
