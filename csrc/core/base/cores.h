// Cores that this process may use, and the ranks of its job that share them. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace mcast {

// CPUs of the affinity mask, or fewer where a cgroup limits their time (cpu.max): at least 1.
// Computed anew by each call.
uint32_t usable_cores();

// Ranks of this job on this host as the launcher gives them (LOCAL_WORLD_SIZE); 1 if it does not.
uint32_t launched_ranks();

// Whole CPUs whose time cgroup `path` may use, which its ancestors up to `root` limit, too: at
// least 1; UINT32_MAX without a limit. Public for its test.
uint32_t cores_of_cgroup(const std::string& root, const std::string& path);

}  // namespace mcast
