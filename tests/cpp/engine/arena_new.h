// Large blocks of C++ programs in the process's ArenaPool, as torch's tensors are with
// engine_memory=map_all: programs of tests then run unchanged over memory that others map.
#pragma once

namespace mcast::test {

// From now on, in this process: blocks of 64 KiB and more, and groups that do not say otherwise use
// them. Not before a fork of ranks.
void new_in_arenas();
// The setting engine_memory that goes with it; MCAST_TEST_ENGINE_MEMORY overrides it.
const char* engine_memory();

}  // namespace mcast::test
