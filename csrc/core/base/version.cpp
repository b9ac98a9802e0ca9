// The build system knows the version, and tells it here only, so that a new one compiles one file.
#include "base/version.h"

#ifndef MCAST_VERSION
#error "MCAST_VERSION comes from CMake"
#endif

namespace mcast {

const char* version() noexcept { return MCAST_VERSION; }

}  // namespace mcast
