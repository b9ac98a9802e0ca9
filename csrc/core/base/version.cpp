// The build system passes the version to this file only, so that a new version recompiles one file.
#include "base/version.h"

#ifndef MCAST_VERSION
#error "MCAST_VERSION comes from CMake"
#endif

namespace mcast {

const char* version() noexcept { return MCAST_VERSION; }

}  // namespace mcast
