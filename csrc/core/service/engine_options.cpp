// The table of options of `torch-mcast engine run`.
#include "service/engine_options.h"

#include <cstdlib>

namespace mcast::service {
namespace {

constexpr uint64_t kLeastArenas = uint64_t{64} << 20;
constexpr uint64_t kMostArenas = uint64_t{1} << 44;
constexpr uint64_t kMostPath = 100;  // bytes; of a socket's address 107 are left

using EngineRow = OptionRow<HostEngineOptions>;

EngineRow limit(const char* name, const char* fallback, const char* help, uint64_t most,
                uint32_t& (*field)(HostEngineOptions&)) {
  return {{name, "N", fallback, help},
          "a whole number from 1 to " + std::to_string(most),
          [most, field](const std::string& v, HostEngineOptions& o) {
            return read_whole(v, field(o), 1, most);
          }};
}

const std::vector<EngineRow>& engine_rows() {
  static const auto* const kRows = new std::vector<EngineRow>{
      {{"--socket", "PATH", kDefaultEnginePath,
        "where clients connect; what they name in MCAST_ENGINE=host:PATH. The folder must exist"},
       "a path of at most 100 bytes",
       [](const std::string& v, HostEngineOptions& o) {
         o.path = v;
         return v.size() <= kMostPath && !v.empty() && v[0] == '/';
       }},
      {{"--mode", "OCTAL", "660", "who may connect: the mode of the socket's file"},
       "three octal digits such as 660",
       [](const std::string& v, HostEngineOptions& o) {
         char* end = nullptr;
         o.mode = static_cast<mode_t>(std::strtoul(v.c_str(), &end, 8));
         return v.size() == 3 && *end == 0 && o.mode <= 0777;
       }},
      limit("--clients", "64", "clients at once, of one user", 4096,
            [](HostEngineOptions& o) -> uint32_t& { return o.clients; }),
      limit("--groups", "256", "process groups of a client", 65535,
            [](HostEngineOptions& o) -> uint32_t& { return o.limits.groups; }),
      limit("--operations", "4096", "operations of a client in flight", 1u << 20,
            [](HostEngineOptions& o) -> uint32_t& { return o.limits.operations; }),
      {{"--arenas", "BYTES", "twice the machine's",
        "memory that a client may share; suffix K, M or G (2^10, ...)"},
       "64M to 16384G",
       [](const std::string& v, HostEngineOptions& o) {
         return read_bytes(v, o.limits.arenas, kLeastArenas, kMostArenas);
       }},
      {{"--silence", "MS", "10000",
        "time that this process may stand still before clients take it for hung"},
       "milliseconds from 500 to 600000",
       [](const std::string& v, HostEngineOptions& o) {
         if (!read_whole(v, o.limits.silence, 500, 600'000)) return false;
         o.limits.silence *= kMilli;
         return true;
       }},
      {{"--interface", "NAME", "as each client says",
        "network interface of all clients, as the setting MCAST_SOCKET_IFNAME"},
       "an interface or a pattern of them",
       [](const std::string& v, HostEngineOptions& o) {
         o.limits.settings["interface"] = v;
         return !v.empty();
       }},
  };
  return *kRows;
}

}  // namespace

Result<EngineCommandLine> parse_engine_command_line(const std::vector<std::string>& arguments) {
  EngineCommandLine line;
  const Result<Action> action = parse_options(engine_rows(), arguments, line.options);
  if (!action.ok()) return action.status();
  line.action = *action;
  return line;
}

std::string engine_help_text() {
  return "usage: torch-mcast engine run [OPTIONS]\n"
         "       torch-mcast engine status [--json] [--socket PATH]\n\n"
         "Runs the network of training processes of this host that say MCAST_ENGINE=host, until "
         "SIGTERM.\n\n" +
         options_help(engine_rows());
}

}  // namespace mcast::service
