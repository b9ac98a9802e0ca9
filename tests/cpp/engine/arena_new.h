// Large blocks of C++ programs in the process's ArenaPool, as torch's tensors are with
// engine_memory=map: programs of tests then run unchanged over memory that others map.
#pragma once

namespace mcast::test {

// From now on, in this process: blocks of 64 KiB and more. Not before a fork of ranks.
void new_in_arenas();

}  // namespace mcast::test
