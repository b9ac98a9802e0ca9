// Options of a host engine: its command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/option_table.h"
#include "host_engine/server/host_engine.h"

namespace mcast::service {

struct DrainRequest {
  std::string path = kDefaultEnginePath;  // of the engine's socket
  Nanos limit = HostEngine::kDrain;
  std::string user;  // of the engine; empty: as the setting engine_user says
};

struct EngineCommandLine {
  Action action = Action::kServe;
  HostEngineOptions options;
  std::optional<DrainRequest> drain;  // if "drain" comes first: request to send instead
};

// `secret_file`, `security`: values of MCAST_SECRET_FILE and MCAST_SECURITY in the environment,
// used if the arguments do not set them.
Result<EngineCommandLine> parse_engine_command_line(const std::vector<std::string>& arguments,
                                                    const std::string& secret_file = "",
                                                    const std::string& security = "");
std::string engine_help_text();

}  // namespace mcast::service
