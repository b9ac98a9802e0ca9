// Large blocks of C++ programs come from the process's ArenaPool, like torch's tensors with
// engine_memory=map_all. Test programs then run unchanged over memory that other processes map.
#pragma once

namespace mcast::test {

// From now on, blocks of 64 KiB and more of this process come from the pool, and groups use it
// unless they specify otherwise. Must not be called before ranks are forked.
void new_in_arenas();
// The matching value of the setting engine_memory; MCAST_TEST_ENGINE_MEMORY overrides it.
const char* engine_memory();

}  // namespace mcast::test
