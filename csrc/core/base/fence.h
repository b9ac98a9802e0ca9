// A full memory fence, for memory that no atomic word guards: what one process reads of another's
// by a system call. Neither a system call nor a store of sequential consistency is one on ARM: what
// comes after them may be seen before.
#pragma once

namespace mcast {

// What this thread has read and written comes before what it reads and writes later, for everybody.
// Not std::atomic_thread_fence, which GCC refuses under ThreadSanitizer.
inline void full_fence() noexcept { __sync_synchronize(); }

}  // namespace mcast
