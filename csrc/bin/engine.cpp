// The program behind `torch-mcast engine run`: options, signals, exit codes; the rest is
// service/host_engine.h. SIGTERM and SIGINT end it: clients are told by their sockets' end, their
// groups fail by name on all ranks. Exit codes: 0 ended in order, 1 cannot serve, 2 wrong options.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/log.h"
#include "base/version.h"
#include "service/engine_options.h"

namespace {

using namespace mcast;

int fail(int code, const char* message) {
  std::fprintf(stderr, "torch-mcast engine: %s\n", message);
  return code;
}

int run(const service::HostEngineOptions& options) {
  const char* const level = std::getenv("MCAST_DEBUG");
  set_log_level(parse_log_level(level != nullptr ? level : "").value_or(LogLevel::kInfo));
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  auto engine = service::HostEngine::start(options);
  if (!engine.ok()) return fail(1, engine.status().message().c_str());
  log(LogLevel::kInfo, "engine listens at %s", options.path.c_str());
  int number = 0;
  sigwait(&signals, &number);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = service::parse_engine_command_line({argv + 1, argv + argc});
  if (!line.ok()) return fail(2, line.status().message().c_str());
  if (line->action == service::Action::kHelp) {
    std::fputs(service::engine_help_text().c_str(), stdout);
    return 0;
  }
  if (line->action == service::Action::kVersion) {
    std::printf("torch-mcast engine %s\n", version());
    return 0;
  }
  try {
    return run(line->options);
  } catch (const std::exception& error) {  // no thread, no memory
    return fail(1, error.what());
  }
}
