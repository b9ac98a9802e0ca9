// Identity of this process: which processes share a host, and which belong to one job. Any thread.
#pragma once

#include <string>

namespace mcast {

// Equal for two processes exactly when they share a kernel and a network namespace, so containers
// and namespaces count as separate hosts: "<boot id>/<namespace device>:<inode>". If /proc is not
// available, a value that no other process has: such a process shares a host with nobody, which is
// slower but never wrong. Each call computes it again (a process may enter another namespace); the
// unknown value is kept.
std::string host_id();
// Returns false if /proc was not available to the process with this id.
bool host_known(const std::string& id);

// The same from other files; "" if one of them cannot be read. Public for its test.
std::string host_id_from(const char* boot_id_path, const char* net_namespace_path);

// Only for messages to people.
std::string host_name();

// Distinguishes this job from others on the network, equal on all its ranks: "run|address|port"
// from TORCHELASTIC_RUN_ID, MASTER_ADDR and MASTER_PORT; empty if none is set (runtime/rendezvous.h
// has the substitute). Reads the environment.
std::string job_salt();

}  // namespace mcast
