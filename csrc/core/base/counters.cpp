// Names and help texts of the counters, expanded from the one table in counters.h.
#include "base/counters.h"

namespace mcast {
namespace {

constexpr const char* kNames[] = {
#define MCAST_COUNTER_NAME(name, help) #name,
    MCAST_COUNTERS(MCAST_COUNTER_NAME)
#undef MCAST_COUNTER_NAME
};

constexpr const char* kHelp[] = {
#define MCAST_COUNTER_HELP(name, help) help,
    MCAST_COUNTERS(MCAST_COUNTER_HELP)
#undef MCAST_COUNTER_HELP
};

}  // namespace

const char* counter_name(Counter counter) noexcept { return kNames[static_cast<size_t>(counter)]; }
const char* counter_help(Counter counter) noexcept { return kHelp[static_cast<size_t>(counter)]; }

}  // namespace mcast
