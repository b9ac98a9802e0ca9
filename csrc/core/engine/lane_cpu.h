// To which CPU a lane's thread is pinned (setting `pin`).
#pragma once

#include <cstddef>
#include <vector>

namespace mcast {

// Of `allowed`, the CPUs of this process's affinity mask in order, one for lane `lane` of `lanes`
// of the process that is `local_rank` of `local_ranks` on its host; -1: none. `online`: CPUs of the
// host. Where the launcher has given this process fewer CPUs than there are (Slurm, mpirun,
// numactl) they need not suffice for all lanes of the host.
inline int lane_cpu(const std::vector<int>& allowed, size_t online, size_t lanes, size_t lane,
                    size_t local_ranks, size_t local_rank) {
  const size_t least = allowed.size() < online ? lanes : lanes * local_ranks;
  if (allowed.size() < least) return -1;
  return allowed[(lanes * local_rank + lane) % allowed.size()];
}

}  // namespace mcast
