// The program behind `torch-mcast engine run` and `drain`: its command line and exit codes; the
// rest is in host_engine/server/engine_program.h. Exit codes: 0 ended in order, 1 cannot serve
// (drain: no engine runs), 2 wrong options, 3 it hung and was killed, 128 plus a signal's number:
// it was killed by that signal.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "assembly/assembly.h"
#include "base/log.h"
#include "base/test_clock.h"
#include "base/version.h"
#include "crypto/ipsec_mb.h"
#include "host_engine/server/drain_socket.h"
#include "host_engine/server/engine_options.h"
#include "host_engine/server/engine_program.h"

namespace {

using namespace mcast;

int fail(int code, const char* message) {
  std::fprintf(stderr, "torch-mcast engine: %s\n", message);
  return code;
}

// (Config::read_environment() would copy more than is needed.)
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

int drain(const service::DrainRequest& request) {
  const std::string user = request.user.empty() ? variable("MCAST_ENGINE_USER") : request.user;
  const auto trusted = TrustedUser::named(user);
  if (!trusted.ok()) return fail(1, trusted.status().message().c_str());
  const auto told = service::ask_to_drain(request.path, request.limit, *trusted);
  if (!told.ok()) return fail(1, told.status().message().c_str());
  std::printf("the engine at %s takes no new clients or groups and ends within %s\n",
              request.path.c_str(), seconds_text(told->limit).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  use_products(&assemble);
  const auto line = service::parse_engine_command_line(
      {argv + 1, argv + argc}, variable("MCAST_SECRET_FILE"), variable("MCAST_SECURITY"));
  if (!line.ok()) return fail(2, line.status().message().c_str());
  if (line->action == service::Action::kHelp) {
    std::fputs(service::engine_help_text().c_str(), stdout);
    return 0;
  }
  if (line->action == service::Action::kVersion) {
    std::printf("torch-mcast engine %s\n", version());
    return 0;
  }
  set_log_level(parse_log_level(variable("MCAST_DEBUG")).value_or(LogLevel::kInfo));
  if (variable("MCAST_SECURITY_LIBRARY") == "libcrypto") crypto::use_libcrypto_only();
  if (const Status clock = test_clock::use_environment(); !clock.ok()) {
    return fail(1, clock.message().c_str());
  }
  try {
    return line->drain ? drain(*line->drain) : service::run_engine(line->options, [] {});
  } catch (const std::exception& error) {  // no thread, no memory
    return fail(1, error.what());
  }
}
