// Tensors in memory that ranks of this host and its engine map.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>

namespace mcast::pg {

// For single tensors (setting engine_memory=map): memory of the process's ArenaPool, which somebody
// else makes; torch's own CPU allocator serves what the pool has no room for. Any thread.
class ArenaAllocator final : public c10::Allocator {
 public:
  // The one of the process, which tensors refer to as long as it lives.
  static const std::shared_ptr<ArenaAllocator>& instance();

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// From now on torch's CPU tensors of 1 MiB and more are allocated in the process's ArenaPool, as
// long as it has room (engine_memory=map_all). Idempotent; any thread. Returns false if there can
// be no pool, and all stays as it is.
bool replace_cpu_allocator();

}  // namespace mcast::pg
