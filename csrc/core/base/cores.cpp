// The affinity mask counts CPUs, a cgroup's quota their time: a container with cpu.max "200000
// 100000" sees all CPUs of the machine, and is stopped for the rest of a period in which it has
// used two of them. Only version 2 of cgroups is read.
#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace mcast {
namespace {

constexpr uint32_t kNoLimit = UINT32_MAX;

uint32_t cores_of_file(const std::string& path) {
  std::ifstream file(path);
  uint64_t quota = 0, period = 0;
  if (!(file >> quota >> period) || period == 0) return kNoLimit;  // "max 100000", or not there
  return static_cast<uint32_t>(std::clamp<uint64_t>(quota / period, 1, kNoLimit));
}

// The path of this process's cgroup; "": it has none.
std::string own_cgroup() {
  constexpr std::string_view kVersion2 = "0::";
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kVersion2, 0) == 0) return line.substr(kVersion2.size());
  }
  return "";
}

}  // namespace

uint32_t cores_of_cgroup(const std::string& root, const std::string& path) {
  uint32_t least = cores_of_file(root + "/cpu.max");
  // (A path with ".." is seen from a namespace that it is not in; its files are not there.)
  for (size_t end = path.find('/', 1); path.size() > 1; end = path.find('/', end + 1)) {
    least = std::min(least, cores_of_file(root + path.substr(0, end) + "/cpu.max"));
    if (end == std::string::npos) break;
  }
  return least;
}

uint32_t usable_cores() {
  cpu_set_t mask;
  uint32_t cores = kNoLimit;
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) {
    cores = static_cast<uint32_t>(CPU_COUNT(&mask));
  }
  cores = std::min(cores, cores_of_cgroup("/sys/fs/cgroup", own_cgroup()));
  return std::max(1u, cores == kNoLimit ? 1u : cores);
}

uint32_t launched_ranks() {
  const char* const text = std::getenv("LOCAL_WORLD_SIZE");
  const unsigned long ranks = text != nullptr ? std::strtoul(text, nullptr, 10) : 1;
  return static_cast<uint32_t>(std::clamp<unsigned long>(ranks, 1, 1u << 16));
}

}  // namespace mcast
