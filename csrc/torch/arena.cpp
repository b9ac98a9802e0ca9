// torch's own CPU allocator serves what is small and what the pool has no room for. Its blocks and
// the pool's are freed by one function, since an allocator may have only one: the address says
// whose.
#include "arena.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>

#include "base/log.h"
#include "host/arena_pool.h"

namespace mcast::pg {
namespace {

// Below this, operations go through slots as cheaply.
constexpr size_t kLeast = size_t{1} << 20;

class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(c10::Allocator& other) : other_(other) {
    other_deleter() = other.raw_deleter();
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* block = nullptr;
    if (bytes >= kLeast) {
      ArenaPool* pool = ArenaPool::of_process();
      // A process that was forked has none yet.
      if (pool == nullptr) {
        const auto opened = ArenaPool::open_for_process();
        if (opened.ok()) pool = *opened;
      }
      if (pool != nullptr) block = pool->allocate(bytes);
    }
    if (block == nullptr) block = other_.raw_allocate(bytes);
    return {block, block, &release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static c10::DeleterFnPtr& other_deleter() {
    static c10::DeleterFnPtr deleter = nullptr;
    return deleter;
  }
  static void release(void* block) {
    if (block == nullptr) return;
    if (!ArenaPool::release_any(static_cast<std::byte*>(block))) other_deleter()(block);
  }

  c10::Allocator& other_;
};

}  // namespace

bool use_arenas() {
  static std::mutex mutex;
  static bool used = false;
  const std::lock_guard<std::mutex> held(mutex);
  if (used) return true;
  c10::Allocator* const other = c10::GetCPUAllocator();
  if (other->raw_deleter() == nullptr) {
    log(LogLevel::kWarn, "engine_memory=map: torch's CPU allocator is one of another program's");
    return false;
  }
  const auto pool = ArenaPool::open_for_process();
  if (!pool.ok()) {
    log(LogLevel::kWarn, "engine_memory=map: %s", pool.status().message().c_str());
    return false;
  }
  static ArenaAllocator& allocator = *new ArenaAllocator(*other);
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  used = true;
  return true;
}

}  // namespace mcast::pg
