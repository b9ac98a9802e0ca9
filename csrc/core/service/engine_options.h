// What an engine of the host is told when it starts: its command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "service/host_engine.h"
#include "service/option_table.h"

namespace mcast::service {

struct DrainRequest {
  std::string path = kDefaultEnginePath;  // of the engine's socket
  Nanos limit = HostEngine::kDrain;
};

struct EngineCommandLine {
  Action action = Action::kServe;
  HostEngineOptions options;
  std::optional<DrainRequest> drain;  // what is to be done instead: "drain" comes first
};

Result<EngineCommandLine> parse_engine_command_line(const std::vector<std::string>& arguments);
std::string engine_help_text();

}  // namespace mcast::service
