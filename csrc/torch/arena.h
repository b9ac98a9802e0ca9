// Tensors in memory that ranks of this host and its engine map (setting engine_memory=map).
#pragma once

namespace mcast::pg {

// From now on torch's CPU tensors of 1 MiB and more are allocated in the process's ArenaPool, as
// long as it has room. Idempotent; any thread. False: there can be no pool, and all stays as it is.
bool use_arenas();

}  // namespace mcast::pg
