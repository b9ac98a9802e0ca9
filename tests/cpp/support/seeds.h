// How many seeds a simulation runs. ThreadSanitizer makes it ten times slower and has nothing to
// find in it (the simulator has one thread): an eighth of them then.
#pragma once

#include <cstdint>

namespace mcast::test {

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define MCAST_TEST_TSAN 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define MCAST_TEST_TSAN 1
#endif

#ifdef MCAST_TEST_TSAN
constexpr uint64_t seeds(uint64_t all) { return all / 8 + 1; }
#else
constexpr uint64_t seeds(uint64_t all) { return all; }
#endif

}  // namespace mcast::test
