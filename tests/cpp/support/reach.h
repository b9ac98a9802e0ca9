// Which counters and points (base/reach.h) the tests reach. With MCAST_TEST_REACH=folder in the
// environment every process writes a file there at its end: a line "name sum test" per counter,
// where `test` is the first that raised it, and a line "point.name count test" per point.
// tools/reach.py reads the files of all programs; what is 0 in all of them belongs to an event that
// no test makes happen.
#pragma once

#include "base/counters.h"

namespace mcast::test {

// What a group of a test has counted.
void add_reach(const Counters& counters);
void add_reach(Counter counter, uint64_t count);

// Writes the file. The main process does so by itself; a child of fork() says it before it ends.
void write_reach();

}  // namespace mcast::test
