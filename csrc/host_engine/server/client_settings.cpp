// A path would be opened with the engine's rights, and among its own descriptors ("/dev/fd/N").
// CPUs are chosen by the environment, which here is the engine's, so all clients' lanes would share
// two. The time limit of a close is sent with each; `linger` would control how long an engine that
// ends waits for the remains of clients that are gone. The library that seals is one for all
// clients.
#include "host_engine/server/client_settings.h"

#include "base/units.h"

namespace mcast::service {

void drop_local_settings(std::map<std::string, std::string>& settings) {
  for (const char* const name : {"secret_file", "metrics_file", "pin"}) settings.erase(name);
  for (const char* const name : {"linger", "security_library"}) settings.erase(name);
}

Status served(const Config& config, const EngineContext& engine) {
  if (!engine.security || engine.security->serves(config.security)) return {};
  return Status(Code::kUnavailable,
                "engine of this host serves security=" + engine.security->modes_text() +
                    ", not security=" + config.security);
}

Status bounded(const Config& config) {
  for (const char* const name : {"staging", "retransmit", "incast"}) {
    uint64_t bytes = 0;
    if (!read_number(config.get(name), bytes) || bytes <= kMostKept) continue;
    return Status(Code::kResourceExhausted, "engine's limit of " + size_text(kMostKept) +
                                                " for the setting " + name +
                                                " is exceeded: " + size_text(bytes));
  }
  return {};
}

}  // namespace mcast::service
