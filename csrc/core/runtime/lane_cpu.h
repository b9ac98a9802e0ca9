// Chooses the CPU that a lane's thread is pinned to (setting `pin`).
#pragma once

#include <cstddef>
#include <vector>

namespace mcast {

// Returns one of `allowed`, the CPUs of this process's affinity mask in order, for lane `lane` of
// `lanes` of the process that is `local_rank` of `local_ranks` on its host; -1: none. `online`:
// number of CPUs of the host. If the launcher has given this process fewer CPUs than there are
// (Slurm, mpirun, numactl), they only need to suffice for its own lanes.
inline int lane_cpu(const std::vector<int>& allowed, size_t online, size_t lanes, size_t lane,
                    size_t local_ranks, size_t local_rank) {
  const size_t least = allowed.size() < online ? lanes : lanes * local_ranks;
  if (allowed.size() < least) return -1;
  return allowed[(lanes * local_rank + lane) % allowed.size()];
}

}  // namespace mcast
