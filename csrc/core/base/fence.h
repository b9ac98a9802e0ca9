// A full memory fence, for memory without an atomic word: memory that one process reads of another
// by a system call. On ARM neither a system call nor a sequentially consistent store is a fence:
// later accesses may become visible before them.
#pragma once

namespace mcast {

// This thread's earlier reads and writes become visible before its later ones, to every observer.
// Not std::atomic_thread_fence, which GCC refuses under ThreadSanitizer.
inline void full_fence() noexcept { __sync_synchronize(); }

}  // namespace mcast
