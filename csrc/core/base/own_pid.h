// The id of this process, without a system call: groups compare it in every call, since a child of
// fork() must not use them. Any thread; also in a child.
#pragma once

#include <sys/types.h>

namespace mcast {

pid_t own_pid();

}  // namespace mcast
