// The table of options. If an option is given twice, the last one counts, but --allow adds to the
// allowed hosts. Settings of the transports are read from the environment; --interface is one of
// them.
#include "aggregation/server/options.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/units.h"
#include "wire/aggregation.h"

namespace mcast::service {
namespace {

constexpr uint64_t kLeastQuota = 1u << 20;
constexpr uint64_t kMostQuota = uint64_t{1} << 44;
constexpr uint32_t kMostJobs = 1024;
constexpr uint64_t kMostDeadline = 86'400'000;  // ms

bool read_quota(const std::string& text, uint64_t& out) {
  return read_bytes(text, out, kLeastQuota, kMostQuota);
}

// "HOST:PORT", "HOST", ":PORT"; an address of IPv6 is in brackets.
bool read_listen(const std::string& text, Options& options) {
  const size_t end = text.rfind(']');
  const size_t colon = text.find(':', end == std::string::npos ? 0 : end);
  std::string host = text.substr(0, colon);
  if (colon != std::string::npos && !read_whole(text.substr(colon + 1), options.port, 0, 65535)) {
    return false;
  }
  if (end != std::string::npos) {
    if (host.size() < 3 || host.front() != '[' || host.back() != ']') return false;
    host = host.substr(1, host.size() - 2);
    if (host != "::" && !IpAddress::parse(host)) return false;
  }
  options.host = host == "*" || host == "::" ? "" : host;
  return host.find(' ') == std::string::npos;
}

bool read_allow(const std::string& text, std::vector<IpNetwork>& out) {
  const auto networks = parse_networks(text, kMostAllowed);
  if (!networks.ok() || networks->empty()) return false;
  out.insert(out.end(), networks->begin(), networks->end());
  return true;
}

using Row = OptionRow<Options>;

const std::vector<Row>& rows() {
  static const auto* const kRows = new std::vector<Row>{
      {{"--listen", "HOST:PORT", ":7117",
        "TCP address for requests of groups; port 0: any free port. Stations use ports of their "
        "own"},
       "HOST:PORT, a name or an address ([fd00::1]) and a port from 0 to 65535",
       read_listen},
      {{"--lanes", "N", "1",
        "stations per job: threads with sockets of their own, which share the segments of the job. "
        "One carries about 20 Gbit/s"},
       "a whole number from 1 to " + std::to_string(wire::kMostStations),
       [](const std::string& v, Options& o) {
         return read_whole(v, o.lanes, 1, wire::kMostStations);
       }},
      {{"--quota", "BYTES", "512M",
        "limit on the memory of all jobs together; suffix K, M or G (2^10, ...)"},
       "1M to 16384G",
       [](const std::string& v, Options& o) { return read_quota(v, o.quota); }},
      {{"--quota-per-job", "BYTES", "a quarter of --quota", "limit on the memory of one job"},
       "1M to 16384G",
       [](const std::string& v, Options& o) { return read_quota(v, o.quota_per_job); }},
      {{"--jobs", "N", "16", "limit on process groups that are served at the same time"},
       "a whole number from 1 to " + std::to_string(kMostJobs),
       [](const std::string& v, Options& o) { return read_whole(v, o.jobs, 1, kMostJobs); }},
      {{"--rate", "RATE", "the rate of a rank's link",
        "rate of this host's link: 100gbit, 300mbit. Together with the ranks' setting link_rate it "
        "gives the speed of a station relative to a rank's link"},
       "a rate such as 100gbit, 2.5gbit, 300mbit or 1000 (bits per second)",
       [](const std::string& v, Options& o) { return parse_rate(v, o.rate); }},
      {{"--deadline", "MS", "1000",
        "milliseconds that a segment may wait for a contribution before ranks are notified which "
        "rank is missing"},
       "milliseconds from 1 to " + std::to_string(kMostDeadline),
       [](const std::string& v, Options& o) {
         if (!read_whole(v, o.deadline, 1, kMostDeadline)) return false;
         o.deadline *= kMilli;
         return true;
       }},
      {{"--interface", "NAME", "the one with the address of --listen",
        "network interface of the stations; same syntax as MCAST_SOCKET_IFNAME"},
       "",  // by the settings
       [](const std::string& v, Options& o) {
         o.interface = v;
         return true;
       }},
      {{"--allow", "NET,...", "all networks",
        "networks whose hosts may send requests: 10.0.0.0/8,192.168.1.7; may be repeated"},
       "networks such as 10.0.0.0/8,192.168.1.7,fd00:1::/64",
       [](const std::string& v, Options& o) { return read_allow(v, o.allow); }},
      {{"--status", "PATH", "/run/torch-mcast-aggregator/aggregator.sock or in $XDG_RUNTIME_DIR",
        "socket for `torch-mcast aggregator status`"},
       "a path of at most 100 bytes",
       [](const std::string& v, Options& o) {
         o.status = v;
         return !v.empty() && v.size() <= 100;
       }},
  };
  return *kRows;
}

}  // namespace

bool Options::allows(const IpAddress& who) const {
  return allow.empty() || std::any_of(allow.begin(), allow.end(),
                                      [&who](const IpNetwork& n) { return n.contains(who); });
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment) {
  CommandLine line;
  const Result<Action> action = parse_options(rows(), arguments, line.options);
  if (!action.ok()) return action.status();
  line.action = *action;
  if (line.action != Action::kServe) return line;
  if (line.options.job_quota() > line.options.quota) {
    return usage_error("option --quota-per-job: must not be more than --quota");
  }
  std::map<std::string, std::string> settings;
  if (!line.options.interface.empty()) settings["interface"] = line.options.interface;
  Result<Config> config = Config::resolve(settings, environment);
  if (!config.ok()) return config.status();
  line.options.config = std::move(config).value();
  return line;
}

std::string help_text() {
  return "usage: torch-mcast aggregator [OPTIONS]\n"
         "       torch-mcast aggregator status [--json]\n\n"
         "Folds (adds up) reductions of torch-mcast groups that name this host in "
         "MCAST_AGGREGATORS, until SIGTERM.\n"
         "Reads the settings of the transports from MCAST_* variables, as ranks do.\n\n" +
         options_help(rows());
}

const std::vector<OptionInfo>& option_table() {
  static const auto* const kTable = [] {
    auto* table = new std::vector<OptionInfo>;
    for (const Row& row : rows()) table->push_back(row.info);
    return table;
  }();
  return *kTable;
}

}  // namespace mcast::service
