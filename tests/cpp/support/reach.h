// Records which counters and points (base/coverage.h) the tests reach. With MCAST_TEST_REACH=folder
// in the environment, every process writes a file there when it ends: a line "name sum test" per
// counter, where `test` is the first that raised it, and a line "point.name count test" per point.
// tools/reach.py reads the files of all programs; a counter or point that is 0 in all of them
// belongs to an event that no test causes.
#pragma once

#include "base/counters.h"

namespace mcast::test {

// Adds the counters of a group of a test.
void add_reach(const Counters& counters);
void add_reach(Counter counter, uint64_t count);

// Writes the file. The main process does so by itself; a child of fork() must call it before it
// ends.
void write_reach();

}  // namespace mcast::test
