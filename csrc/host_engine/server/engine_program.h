// An engine of the host as a program: signals and exit status.
#pragma once

#include <functional>

#include "host_engine/server/host_engine.h"

namespace mcast::service {

// Runs an engine until it has ended, in a child process that is supervised unless
// `options.guardian` is false (host_engine/server/guardian.h). Returns the exit status, in each of
// its processes. The caller has one thread. `listens` is called once clients can connect.
int run_engine(HostEngineOptions options, const std::function<void()>& listens);

}  // namespace mcast::service
