// Two allocators on one ArenaPool: one for tensors that a group is asked for, one for all tensors
// of the process. If the pool is full, torch's own CPU allocator serves both. An allocator
// that replaces torch's may have one deleter only, which must free blocks of both kinds: the
// address says whose a block is.
#include "arena.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>

#include "base/log.h"
#include "shm/arena_pool.h"

namespace mcast::pg {
namespace {

// Below this, operations go through slots as cheaply.
constexpr size_t kLeast = size_t{1} << 20;

void release_to_pool(void* block) { ArenaPool::release_any(static_cast<std::byte*>(block)); }

class ProcessAllocator final : public c10::Allocator {
 public:
  explicit ProcessAllocator(c10::Allocator& other) : other_(other) {
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

const std::shared_ptr<ArenaAllocator>& ArenaAllocator::instance() {
  static const auto& allocator = *new auto(std::make_shared<ArenaAllocator>());
  return allocator;
}

c10::DataPtr ArenaAllocator::allocate(size_t bytes) {
  // None in the child of a fork.
  ArenaPool* const pool = ArenaPool::of_process();
  if (pool == nullptr || bytes == 0) return c10::GetCPUAllocator()->allocate(bytes);
  if (std::byte* const block = pool->allocate(bytes)) {
    return {block, block, &release_to_pool, c10::DeviceType::CPU};
  }
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    log(LogLevel::kWarn,
        "allocate_tensor: the arena pool has no room for %zu bytes: this tensor, and others that "
        "do not fit, use torch's memory and are copied",
        bytes);
  }
  return c10::GetCPUAllocator()->allocate(bytes);
}

bool replace_cpu_allocator() {
  static std::mutex mutex;
  static bool replaced = false;
  const std::lock_guard<std::mutex> held(mutex);
  if (replaced) return true;
  c10::Allocator* const other = c10::GetCPUAllocator();
  if (other->raw_deleter() == nullptr) {
    log(LogLevel::kWarn,
        "engine_memory=map_all has no effect: another library has replaced torch's CPU allocator");
    return false;
  }
  const auto pool = ArenaPool::open_for_process();
  if (!pool.ok()) {
    log(LogLevel::kWarn, "engine_memory=map_all: %s", pool.status().message().c_str());
    return false;
  }
  static ProcessAllocator& allocator = *new ProcessAllocator(*other);
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  replaced = true;
  return true;
}

}  // namespace mcast::pg
