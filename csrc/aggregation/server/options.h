// Options of an aggregator: its command line, from which its help is generated.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/ip_address.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/option_table.h"

namespace mcast::service {

struct Options {
  std::string host;      // listening address: a name or an address; empty: all
  uint16_t port = 7117;  // 0: any free port
  uint32_t lanes = 1;
  uint64_t quota = 512u << 20;  // bytes, for all jobs
  uint64_t quota_per_job = 0;   // bytes; 0: a quarter of `quota`
  uint32_t jobs = 16;
  uint64_t rate = 0;  // bits per second of this host's link; 0: not given
  Nanos deadline = kSecond;
  std::vector<IpNetwork> allow;  // hosts that may ask; empty: all
  std::string interface;         // setting of the stations' transports; empty: from `host`
  std::string status;            // path of the status socket; empty: the default path
  Config config;                 // of the stations' transports

  uint64_t job_quota() const { return quota_per_job != 0 ? quota_per_job : quota / 4; }
  // Returns true if this host may ask.
  bool allows(const IpAddress& host) const;
};

struct CommandLine {
  Action action = Action::kServe;
  Options options;
};

// `arguments`: without the program's name. kInvalidArgument names the option, the value and the
// allowed values. Settings of the transports are read from `environment`
// (Config::read_environment()).
Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment);
// The text of --help.
std::string help_text();

const std::vector<OptionInfo>& option_table();

}  // namespace mcast::service
