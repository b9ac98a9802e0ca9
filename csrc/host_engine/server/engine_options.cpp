// The tables of options of `torch-mcast engine run` and `drain`.
#include "host_engine/server/engine_options.h"

#include <grp.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/units.h"
#include "base/users.h"

namespace mcast::service {
namespace {

constexpr uint64_t kLeastArenas = uint64_t{64} << 20;
constexpr uint64_t kMostArenaBytes = uint64_t{1} << 44;
constexpr uint64_t kMostWeight = 1000;
constexpr uint64_t kLeastBounce = uint64_t{64} << 10;
constexpr uint64_t kMostPath = 100;  // bytes; a socket's address has room for 107

using EngineRow = OptionRow<HostEngineOptions>;

EngineRow limit(const char* name, const char* fallback, const char* help, uint64_t most,
                uint32_t& (*field)(HostEngineOptions&)) {
  return {{name, "N", fallback, help},
          "a whole number from 1 to " + std::to_string(most),
          [most, field](const std::string& v, HostEngineOptions& o) {
            return read_whole(v, field(o), 1, most);
          }};
}

template <typename Options>
OptionRow<Options> socket_row(const char* help) {
  return {{"--socket", "PATH", kDefaultEnginePath, help},
          "a path of at most 100 bytes",
          [](const std::string& v, Options& o) {
            o.path = v;
            return v.size() <= kMostPath && !v.empty() && v[0] == '/';
          }};
}

// "on" and "off" of a switch.
EngineRow flag(const char* name, const char* fallback, const char* help,
               bool& (*field)(HostEngineOptions&)) {
  return {{name, "on|off", fallback, help},
          "on or off",
          [field](const std::string& v, HostEngineOptions& o) {
            field(o) = v == "on";
            return v == "on" || v == "off";
          }};
}

// A user name of the system, or a number.
bool read_user(const std::string& text, uid_t& out) {
  const std::optional<uid_t> found = find_user(text);
  out = found.value_or(0);
  return found.has_value();
}

bool read_group(const std::string& text, gid_t& out) {
  if (const ::group* const found = ::getgrnam(text.c_str()); found != nullptr) {
    out = found->gr_gid;
    return true;
  }
  return read_whole(text, out, 0, UINT32_MAX - 1);
}

bool read_users(const std::string& text, std::vector<uid_t>& out) {
  for (const std::string_view part : split_at_commas(text)) {
    uid_t user = 0;
    if (!read_user(std::string(part), user)) return false;
    out.push_back(user);
  }
  return true;
}

bool read_weights(const std::string& text, std::map<uid_t, uint32_t>& out) {
  for (const std::string_view part : split_at_commas(text)) {
    const size_t middle = part.find('=');
    uid_t user = 0;
    uint32_t weight = 0;
    if (middle == std::string_view::npos || !read_user(std::string(part.substr(0, middle)), user) ||
        !read_whole(part.substr(middle + 1), weight, 1, kMostWeight)) {
      return false;
    }
    out[user] = weight;
  }
  return true;
}

// Milliseconds or seconds, from `least` to `most`.
bool read_time(const std::string& text, Nanos& out, Nanos unit, uint64_t least, uint64_t most) {
  if (!read_whole(text, out, least, most)) return false;
  out *= unit;
  return true;
}

std::vector<EngineRow> door_rows() {
  return {
      socket_row<HostEngineOptions>("socket to which clients connect, as they name it in "
                                    "MCAST_ENGINE=host:PATH. The folder must exist"),
      {{"--mode", "OCTAL", "660", "mode of the socket's file, which decides who may connect"},
       "three octal digits such as 660",
       [](const std::string& v, HostEngineOptions& o) {
         char* end = nullptr;
         o.mode = static_cast<mode_t>(std::strtoul(v.c_str(), &end, 8));
         return v.size() == 3 && *end == 0 && o.mode <= 0777;
       }},
      {{"--group", "NAME", "that of this process", "group of the socket's file"},
       "a group of this system, or its number",
       [](const std::string& v, HostEngineOptions& o) { return read_group(v, o.group); }},
      {{"--allow", "USERS", "all that the mode allows", "users who may connect: names or numbers"},
       "users of this system, or their numbers, with commas between them",
       [](const std::string& v, HostEngineOptions& o) { return read_users(v, o.users); }},
      {{"--secret-file", "PATH", "MCAST_SECRET_FILE, else MCAST_SECRET",
        "secret of clients' groups, as for a rank: a file of this user with mode 0600, or "
        "/dev/fd/N. Clients need no secret and do not get this one"},
       "a path",
       [](const std::string& v, HostEngineOptions& o) {
         o.security.secret_file = v;
         return !v.empty();
       }},
      {{"--security", "MODES", "MCAST_SECURITY, else auth,sealed with a secret and off without",
        "values of MCAST_SECURITY that groups may use; groups with other values are refused with "
        "an error"},
       "off, auth and sealed, or some of them, with commas between them",
       [](const std::string& v, HostEngineOptions& o) { return read_modes(v, o.security.modes); }},
      flag("--replace", "off", "replace the engine that serves the socket, which then drains",
           [](HostEngineOptions& o) -> bool& { return o.replace; }),
      {{"--goodbye", "SECONDS", "10",
        "time for clients to leave after SIGTERM; then their groups fail with an error"},
       "seconds from 0 to 86400",
       [](const std::string& v, HostEngineOptions& o) {
         return read_time(v, o.goodbye, kSecond, 0, 86'400);
       }},
      flag("--guardian", "on",
           "run a second process that watches this one and kills it if it hangs for a quarter of "
           "--silence (at least 0.5 s), so that clients are disconnected",
           [](HostEngineOptions& o) -> bool& { return o.guardian; }),
  };
}

std::vector<EngineRow> limit_rows() {
  return {
      limit("--clients", "64", "limit on clients of one user at the same time", 4096,
            [](HostEngineOptions& o) -> uint32_t& { return o.clients; }),
      limit("--threads", "768",
            "limit on threads for all clients of a user; a client takes 6 or more", 65535,
            [](HostEngineOptions& o) -> uint32_t& { return o.threads; }),
      {{"--weight", "USER=N,...", "1 for all", "shares of the link for jobs of these users"},
       "users of this system, or their numbers, each with = and a whole number from 1 to 1000, "
       "with "
       "commas between them",
       [](const std::string& v, HostEngineOptions& o) { return read_weights(v, o.weights); }},
      limit("--groups", "256", "limit on process groups of a client", 65535,
            [](HostEngineOptions& o) -> uint32_t& { return o.limits.groups; }),
      limit("--operations", "4096", "limit on operations of a client in flight", 1u << 20,
            [](HostEngineOptions& o) -> uint32_t& { return o.limits.operations; }),
      {{"--arenas", "BYTES", "twice the machine's memory",
        "limit on the memory that a client shares; suffix K, M or G (2^10, ...)"},
       "64M to 16384G",
       [](const std::string& v, HostEngineOptions& o) {
         return read_bytes(v, o.limits.arenas, kLeastArenas, kMostArenaBytes);
       }},
      {{"--peers", "NETWORKS", "those of the interfaces",
        "networks of members and aggregators of clients' groups, \"10.1.0.0/16,10.2.0.7\"; this "
        "host is always included"},
       "networks with commas between them, 64 at most",
       [](const std::string& v, HostEngineOptions& o) {
         auto networks = parse_networks(v, kMostAllowed);
         if (networks.ok()) o.peers = std::move(networks).value();
         return networks.ok() && !o.peers.empty();
       }},
      {{"--bounce", "BYTES", "4G",
        "limit on the memory for tensors that this process copies (engine_memory=copy), for all "
        "clients of a user; suffix K, M or G"},
       "64K to 16384G",
       [](const std::string& v, HostEngineOptions& o) {
         return read_bytes(v, o.limits.bounce, kLeastBounce, kMostArenaBytes);
       }},
      {{"--silence", "MS", "10000",
        "milliseconds that this process may hang before clients regard it as lost"},
       "milliseconds from 500 to 600000",
       [](const std::string& v, HostEngineOptions& o) {
         return read_time(v, o.limits.silence, kMilli, 500, 600'000);
       }},
      {{"--interface", "NAME", "as set by each client",
        "network interface of all clients; same syntax as MCAST_SOCKET_IFNAME"},
       "an interface or a pattern of them",
       [](const std::string& v, HostEngineOptions& o) {
         o.limits.settings["interface"] = v;
         return !v.empty();
       }},
  };
}

std::vector<EngineRow> store_rows() {
  return {
      {{"--store-port", "PORT", "0: none",
        "TCP port at which engines keep the stores of jobs for ranks without a network; the same "
        "on all engines"},
       "a port from 1024 to 65535, or 0",
       [](const std::string& v, HostEngineOptions& o) {
         return read_whole(v, o.store_port, 0, 65535) &&
                (o.store_port == 0 || o.store_port >= 1024);
       }},
      {{"--store-allow", "NETWORKS", "as --peers",
        "networks of engines that may use stores at --store-port; this host is always included"},
       "networks with commas between them, 64 at most",
       [](const std::string& v, HostEngineOptions& o) {
         auto networks = parse_networks(v, kMostAllowed);
         if (networks.ok()) o.store_allow = std::move(networks).value();
         return networks.ok() && !o.store_allow.empty();
       }},
  };
}

const std::vector<EngineRow>& engine_rows() {
  static const auto* const kRows = [] {
    auto* const rows = new std::vector<EngineRow>(door_rows());
    for (EngineRow& row : limit_rows()) rows->push_back(std::move(row));
    for (EngineRow& row : store_rows()) rows->push_back(std::move(row));
    return rows;
  }();
  return *kRows;
}

const std::vector<OptionRow<DrainRequest>>& drain_rows() {
  static const auto* const kRows = new std::vector<OptionRow<DrainRequest>>{
      socket_row<DrainRequest>("as given to the engine"),
      {{"--limit", "SECONDS", "600", "time for clients to leave"},
       "seconds from 0 to 86400",
       [](const std::string& v, DrainRequest& o) {
         return read_time(v, o.limit, kSecond, 0, 86'400);
       }},
      {{"--user", "USER", "MCAST_ENGINE_USER, else root, this user or the folder's owner",
        "user that must run the engine: a name or a number"},
       "a user of this system, or its number",
       [](const std::string& v, DrainRequest& o) {
         o.user = v;
         return find_user(v).has_value();
       }},
  };
  return *kRows;
}

}  // namespace

Result<EngineCommandLine> parse_engine_command_line(const std::vector<std::string>& arguments,
                                                    const std::string& secret_file,
                                                    const std::string& security) {
  EngineCommandLine line;
  line.options.security.secret_file = secret_file;
  const bool drains = !arguments.empty() && arguments[0] == "drain";
  if (drains) line.drain.emplace();
  const Result<Action> action =
      drains ? parse_options(drain_rows(), {arguments.begin() + 1, arguments.end()}, *line.drain)
             : parse_options(engine_rows(), arguments, line.options);
  if (!action.ok()) return action.status();
  line.action = *action;
  std::vector<std::string>& modes = line.options.security.modes;
  const bool serves = !drains && line.action == Action::kServe;
  if (serves && modes.empty() && !security.empty() && !read_modes(security, modes)) {
    return usage_error("environment variable MCAST_SECURITY: \"" + security +
                       "\" is not valid; allowed: as for option --security");
  }
  return line;
}

std::string engine_help_text() {
  return "usage: torch-mcast engine run [OPTIONS]\n"
         "       torch-mcast engine drain [--socket PATH] [--limit SECONDS] [--user USER]\n"
         "       torch-mcast engine status [--json] [--socket PATH] [--user USER]\n"
         "       torch-mcast engine install [--help]\n\n"
         "Runs the network of training processes of this host that set MCAST_ENGINE=host, until "
         "SIGTERM.\n\n" +
         options_help(engine_rows()) +
         "\ndrain: the engine takes no new clients or groups. It ends when the last client has "
         "left or the limit has passed. A new engine may start at once.\n" +
         options_help(drain_rows());
}

}  // namespace mcast::service
