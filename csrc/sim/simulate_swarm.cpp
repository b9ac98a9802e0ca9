// Runs plans one after the other: of a range of seeds, of seeds for some time, or a given one. A
// plan that breaks a law is minimized and written to a file; a line of JSON reports it. A plan that
// ends the process (an access to inaccessible memory, an assertion) is named before it runs; if it
// is given as a file, it is minimized in child processes, which it may end.
#include "sim/simulate_swarm.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "sim/heap_meter.h"
#include "sim/swarm/coverage.h"
#include "sim/swarm/generate.h"
#include "sim/swarm/laws.h"
#include "sim/swarm/shrink.h"

namespace {

using namespace mcast;

constexpr const char* kSwarmHelp =
    "usage: mcast-simulate swarm [--first SEED] [--count N | --seconds S] [--require-reach]\n"
    "                            [--out DIR]\n"
    "       mcast-simulate swarm --plan FILE [--shrink] [--out DIR]\n"
    "\n"
    "Runs the plans of seeds from SEED on [random] and checks invariants. Reduces a plan that\n"
    "breaks one, and writes it to DIR [.]. --print SEED prints the plan of a seed.\n"
    "--require-reach: also exit with code 1 if no plan reached some point of base/coverage.h.\n";

constexpr size_t kShrinkRuns = 2000;
constexpr Nanos kShrinkTime = 60 * kSecond;
constexpr const char* kDeadly = "ended the process";

struct SwarmOptions {
  uint64_t first = 0, count = 0, seconds = 0, print = 0;
  std::string plan, out = ".";
  bool shrink = false, require_reach = false, has_first = false, has_print = false;
};

char running[200];

void on_crash(int signal) {
  (void)!write(STDOUT_FILENO, running, std::strlen(running));
  std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

void note_running(const std::string& name) {
  std::snprintf(running, sizeof running, "{\"plan\": \"%s\", \"law\": \"%s\"}\n", name.c_str(),
                kDeadly);
}

// Returns true if running the plan ends a process; tries it in a child.
bool ends_a_process(const sim::Plan& plan) {
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, SIG_DFL);
    (void)sim::carry_out(plan, &heap_meter());
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status);
}

void show(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

// Writes the plan, preceded by its failure as a comment, and reports that in the line.
void keep(const sim::Plan& plan, const std::string& what, const std::string& name,
          const std::string& folder, Json& line) {
  const std::string file = folder + "/swarm-" + name + ".plan";
  const bool written = static_cast<bool>(std::ofstream(file) << "# " << what << "\n"
                                                             << sim::print(plan) << std::flush);
  line.field(written ? "file" : "unwritten", file);
}

// Minimizes a plan that ends a process.
void shrink_deadly(const sim::Plan& plan, const std::string& name, const std::string& folder) {
  const Nanos end = monotonic_now() + kShrinkTime;
  const sim::Shrunk small =
      sim::shrink(plan, ends_a_process, kShrinkRuns, [&] { return monotonic_now() > end; });
  Json line;
  line.open('{').field("plan", name).field("law", kDeadly);
  keep(small.plan, kDeadly, name, folder, line);
  line.close('}');
  show(line.take());
}

// Returns true if no law is broken.
bool try_plan(const sim::Plan& plan, const std::string& name, bool shrink,
              const std::string& folder, sim::Coverage& coverage) {
  note_running(name);
  const sim::RunEnd run = sim::carry_out(plan, &heap_meter());
  coverage.add(run);
  const auto findings = sim::break_laws(plan, run);
  if (findings.empty()) return true;
  const Nanos end = monotonic_now() + kShrinkTime;
  sim::Shrunk small{plan, 0};
  if (shrink) {
    small = sim::shrink(
        plan, sim::kind_of(findings[0]), kShrinkRuns, [&] { return monotonic_now() > end; },
        &heap_meter());
  }
  Json line;
  line.open('{').field("plan", name).field("law", findings[0].law);
  line.field("text", findings[0].text);
  if (shrink) {
    keep(small.plan, findings[0].law + ": " + findings[0].text, name, folder, line);
  }
  line.close('}');
  show(line.take());
  return false;
}

int run_seeds(const SwarmOptions& options) {
  uint64_t seed = options.has_first ? options.first : std::random_device{}();
  const Nanos end =
      monotonic_now() + static_cast<Nanos>(std::min<uint64_t>(options.seconds, 1u << 30)) * kSecond;
  const uint64_t first = seed;
  uint64_t findings = 0;
  sim::Coverage coverage;
  const auto more = [&] {
    if (options.seconds > 0) return monotonic_now() < end;
    return seed - first < std::max<uint64_t>(1, options.count);
  };
  for (; more(); seed++) {
    findings +=
        try_plan(sim::generate(seed), std::to_string(seed), true, options.out, coverage) ? 0 : 1;
  }
  Json line;
  line.open('{').field("first", first).field("plans", seed - first);
  line.field("findings", findings);
  bool complete = true;
  for (const auto& [name, unmet] : {std::pair("missing_pairs", coverage.missing_pairs()),
                                    std::pair("silent_counters", coverage.silent_counters()),
                                    std::pair("silent_points", coverage.silent_points()),
                                    std::pair("refuted_exceptions", coverage.refuted())}) {
    line.key(name).open('[');
    for (const std::string& one : unmet) line.value(one);
    line.close(']');
    complete = complete && unmet.empty();
  }
  line.close('}');
  show(line.take());
  return findings == 0 && (complete || !options.require_reach) ? 0 : 1;
}

int run_file(const SwarmOptions& options) {
  std::ifstream file(options.plan);
  std::ostringstream text;
  text << file.rdbuf();
  const Result<sim::Plan> plan =
      file ? sim::parse(text.str()) : Status(Code::kInvalidArgument, "cannot be read");
  if (!plan.ok()) {
    std::fprintf(stderr, "mcast-simulate swarm: %s: %s\n", options.plan.c_str(),
                 plan.status().message().c_str());
    return 2;
  }
  const size_t slash = options.plan.find_last_of('/');
  std::string name = options.plan.substr(slash == std::string::npos ? 0 : slash + 1);
  if (const size_t dot = name.rfind(".plan"); dot != std::string::npos) name.resize(dot);
  if (name.rfind("swarm-", 0) == 0) name.erase(0, 6);
  sim::Coverage coverage;
  if (options.shrink && ends_a_process(*plan)) {
    shrink_deadly(*plan, name + "-small", options.out);
    return 1;
  }
  return try_plan(*plan, name + "-small", options.shrink, options.out, coverage) ? 0 : 1;
}

bool read(int count, char** words, SwarmOptions& options) {
  for (int i = 0; i < count; i++) {
    const std::string word = words[i];
    if (word == "--shrink" || word == "--require-reach") {
      (word == "--shrink" ? options.shrink : options.require_reach) = true;
      continue;
    }
    if (++i == count) return false;
    const std::string value = words[i];
    bool good = true;
    if (word == "--first") {
      good = options.has_first = read_number(value, options.first);
    } else if (word == "--count") {
      good = read_number(value, options.count);
    } else if (word == "--seconds") {
      good = read_number(value, options.seconds);
    } else if (word == "--print") {
      good = options.has_print = read_number(value, options.print);
    } else if (word == "--plan") {
      options.plan = value;
    } else if (word == "--out") {
      options.out = value;
    } else {
      return false;
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace

int swarm_main(int count, char** words) {
  SwarmOptions options;
  if (!read(count, words, options)) return std::fputs(kSwarmHelp, stderr), 2;
  set_log_level(LogLevel::kOff);  // groups over dead paths log warnings
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, on_crash);
  if (options.has_print) {
    std::fputs(sim::print(sim::generate(options.print)).c_str(), stdout);
    return 0;
  }
  return options.plan.empty() ? run_seeds(options) : run_file(options);
}
