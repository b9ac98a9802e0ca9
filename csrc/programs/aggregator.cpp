// The program behind `torch-mcast aggregator`: options, signals, exit codes; the rest is in
// aggregation/server/aggregator.h. At SIGTERM and SIGINT groups are notified and get ten seconds to
// leave; a second signal ends it immediately. Exit codes: 0 ended in order, 1 cannot serve, 2 wrong
// options.
#include <signal.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <map>
#include <string>

#include "aggregation/server/aggregator.h"
#include "aggregation/server/deal_work.h"
#include "base/log.h"
#include "base/test_clock.h"
#include "base/version.h"

namespace {

using namespace mcast;

constexpr Nanos kDrain = 10 * kSecond;

int fail(int code, const char* message) {
  std::fprintf(stderr, "torch-mcast aggregator: %s\n", message);
  return code;
}

// Returns when all groups are gone. `signals` are blocked in all threads.
void serve(service::Aggregator& aggregator, const sigset_t& signals) {
  int number = 0;
  sigwait(&signals, &number);
  aggregator.end(kDrain);
  while (!aggregator.over()) {
    const timespec pause{0, 50'000'000};
    if (sigtimedwait(&signals, nullptr, &pause) > 0) aggregator.end(0);
  }
}

int run(const service::Options& options) {
  set_log_level(parse_log_level(options.config.debug).value_or(LogLevel::kInfo));
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  auto aggregator = service::Aggregator::start(options, service::deal_work());
  if (!aggregator.ok()) return fail(1, aggregator.status().message().c_str());
  serve(**aggregator, signals);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> environment = Config::read_environment();
  // A service should log its progress, unless the user has set another level.
  if (std::string& level = environment["MCAST_DEBUG"]; level.empty()) level = "info";
  auto line = service::parse_command_line({argv + 1, argv + argc}, environment);
  if (!line.ok()) return fail(2, line.status().message().c_str());
  if (line->action == service::Action::kHelp) {
    std::fputs(service::help_text().c_str(), stdout);
    return 0;
  }
  if (line->action == service::Action::kVersion) {
    std::printf("torch-mcast aggregator %s\n", version());
    return 0;
  }
  if (const Status clock = test_clock::use_environment(); !clock.ok()) {
    return fail(1, clock.message().c_str());
  }
  try {
    return run(line->options);
  } catch (const std::exception& error) {  // no thread, no memory
    return fail(1, error.what());
  }
}
