// The program behind `torch-mcast simulate`: experiments as arguments or as lines of its input, and
// one line of JSON for each, in order. An invalid specification also gets a line, with the reason,
// and the others are still run. Exit codes: 0 all were run, 1 some were not, 2 wrong options.
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/version.h"
#include "sim/heap_meter.h"
#include "sim/simulate_swarm.h"
#include "sim/world/report.h"

namespace {

using namespace mcast;

constexpr const char* kHelp =
    "usage: mcast-simulate [--check] [--links] [--progress] [--quiet-time] [EXPERIMENT...]\n"
    "       mcast-simulate swarm ...\n"
    "\n"
    "EXPERIMENT: words key=value in one argument, such as\n"
    "\"hosts=188 rate=56gbit op=all_gather block=64K algorithm=direct\". Without arguments each\n"
    "line of the standard input is an experiment.\n"
    "\n"
    "  --check       only check whether the experiments can be run\n"
    "  --links       print the bytes of each link, not only sums\n"
    "  --progress    print virtual time (ns) and finished share on standard error\n"
    "  --quiet-time  omit wall times, so that equal runs give equal text\n";

struct Options {
  bool check = false, links = false, progress = false, quiet_time = false;
  std::vector<std::string> experiments;
};

double seconds_since(Nanos start) { return static_cast<double>(monotonic_now() - start) / 1e9; }

void show_progress(Nanos now, double done) {
  std::fprintf(stderr, "progress %lld %.6f\n", static_cast<long long>(now), done);
}

// Returns false if it could not be run. Output is flushed line by line, for readers of a pipe.
bool answer(const std::string& text, const Options& options) {
  const auto refuse = [&](const Status& why) {
    std::puts(sim::error_json(text, why).c_str());
    std::fflush(stdout);
    return false;
  };
  const auto spec = sim::ExperimentSpec::parse(text);
  if (!spec.ok()) return refuse(spec.status());
  if (options.check) {
    std::puts("{}");
    std::fflush(stdout);
    return true;
  }
  const Nanos start = monotonic_now();
  sim::Watch watch;
  if (options.progress) watch.progress = show_progress;
  watch.meter = &heap_meter();
  const auto result = sim::run_experiment(*spec, watch);
  if (!result.ok()) return refuse(result.status());
  sim::ReportOptions report;
  report.links = options.links;
  if (!options.quiet_time) report.wall = seconds_since(start);
  std::puts(sim::report_json(*spec, *result, report).c_str());
  std::fflush(stdout);
  return true;
}

int run(const Options& options) {
  bool all = true;
  for (const std::string& text : options.experiments) all = answer(text, options) && all;
  std::string line;
  while (options.experiments.empty() && std::getline(std::cin, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    all = answer(line, options) && all;
  }
  return all ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "swarm") == 0) return swarm_main(argc - 2, argv + 2);
  Options options;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") return std::fputs(kHelp, stdout), 0;
    if (word == "--version") return std::printf("mcast-simulate %s\n", version()), 0;
    if (word == "--check") {
      options.check = true;
    } else if (word == "--links") {
      options.links = true;
    } else if (word == "--progress") {
      options.progress = true;
    } else if (word == "--quiet-time") {
      options.quiet_time = true;
    } else if (word.substr(0, 1) == "-") {
      std::fprintf(stderr, "mcast-simulate: no option \"%s\"\n%s", argv[i], kHelp);
      return 2;
    } else {
      options.experiments.push_back(word);
    }
  }
  try {
    return run(options);
  } catch (const std::bad_alloc&) {
    std::fputs("mcast-simulate: not enough memory for this experiment\n", stderr);
    return 1;
  }
}
