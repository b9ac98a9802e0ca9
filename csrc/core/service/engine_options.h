// What an engine of the host is told when it starts: its command line.
#pragma once

#include <string>
#include <vector>

#include "service/host_engine.h"
#include "service/option_table.h"

namespace mcast::service {

struct EngineCommandLine {
  Action action = Action::kServe;
  HostEngineOptions options;
};

Result<EngineCommandLine> parse_engine_command_line(const std::vector<std::string>& arguments);
std::string engine_help_text();

}  // namespace mcast::service
