// A cache by size, with a bounded sum: a request takes the smallest buffer that holds it unless
// that is more than four times as large. Buffers that no longer fit in the cache are freed on the
// background thread, since freeing may call the device. The child of a fork starts with an empty
// cache, because the parent's pinned memory is not usable there.
#include "device/pinned.h"

#include <ATen/ops/empty.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "background.h"

namespace mcast::pg {
namespace {

constexpr size_t kMostCached = size_t{512} << 20;
constexpr size_t kGranule = size_t{64} << 10;
constexpr size_t kMostWaste = 4;
constexpr std::chrono::milliseconds kWaitSlice(200);

struct Cache {
  std::mutex mutex;
  std::multimap<size_t, at::Tensor> free;
  size_t bytes = 0;
  std::atomic<size_t> for_sends{0};

  std::mutex use_mutex;  // guards the rest
  std::condition_variable less;
  PinnedUse use;

  void give_back(size_t held) {
    const std::lock_guard lock(use_mutex);
    use.bytes -= held;
    less.notify_all();
  }
};

Cache*& cache() {
  static Cache* current = [] {
    pthread_atfork(nullptr, nullptr, [] { cache() = new Cache; });
    return new Cache;
  }();
  return current;
}

}  // namespace

PinnedBuffer::PinnedBuffer(at::Tensor bytes)
    : bytes_(std::move(bytes)),
      data_(static_cast<std::byte*>(bytes_.mutable_data_ptr())),
      size_(bytes_.nbytes()) {}

PinnedBuffer::~PinnedBuffer() {
  Cache& all = *cache();
  {
    std::lock_guard lock(all.mutex);
    if (all.bytes + size_ <= kMostCached) {
      all.bytes += size_;
      all.free.emplace(size_, std::move(bytes_));
      return;
    }
  }
  dispose_later(std::move(bytes_));
}

std::shared_ptr<PinnedBuffer> pinned_buffer(size_t bytes) {
  bytes = (bytes + kGranule - 1) / kGranule * kGranule;
  Cache& all = *cache();
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.free.lower_bound(bytes);
    if (found != all.free.end() && found->first / kMostWaste <= bytes) {
      at::Tensor reused = std::move(found->second);
      all.bytes -= found->first;
      all.free.erase(found);
      return std::make_shared<PinnedBuffer>(std::move(reused));
    }
  }
  return std::make_shared<PinnedBuffer>(
      at::empty({static_cast<int64_t>(bytes)},
                at::TensorOptions().dtype(at::kByte).device(at::kCPU).pinned_memory(true)));
}

PinnedUse pinned_use() {
  Cache& all = *cache();
  const std::lock_guard lock(all.use_mutex);
  return all.use;
}

std::shared_ptr<PinnedBuffer> pinned_for_collective(size_t bytes, size_t budget,
                                                    const PinnedWait& wait) {
  Cache* const all = cache();  // not that of a child, which starts at 0
  {
    std::unique_lock lock(all->use_mutex);
    const auto fits = [&] { return all->use.bytes == 0 || all->use.bytes + bytes <= budget; };
    if (!fits()) all->use.waits++;
    while (!fits() && !all->less.wait_for(lock, kWaitSlice, fits)) {
      const size_t held = all->use.bytes;
      lock.unlock();
      const bool goes_on = wait(held);
      lock.lock();
      if (!goes_on) break;
    }
    all->use.bytes += bytes;
    all->use.peak = std::max(all->use.peak, all->use.bytes);
  }
  std::shared_ptr<PinnedBuffer> buffer;
  try {
    buffer = pinned_buffer(bytes);
  } catch (...) {
    all->give_back(bytes);
    throw;
  }
  PinnedBuffer* const memory = buffer.get();
  return {memory, [all, bytes, held = std::move(buffer)](PinnedBuffer*) mutable {
            held.reset();
            all->give_back(bytes);
          }};
}

std::shared_ptr<PinnedBuffer> pinned_for_send(size_t bytes) {
  std::shared_ptr<PinnedBuffer> buffer = pinned_buffer(bytes);
  Cache* const all = cache();  // not that of a child, which starts at 0
  all->for_sends.fetch_add(buffer->size(), std::memory_order_relaxed);
  PinnedBuffer* const memory = buffer.get();
  return {memory, [all, held = std::move(buffer)](PinnedBuffer*) {
            all->for_sends.fetch_sub(held->size(), std::memory_order_relaxed);
          }};
}

size_t pinned_for_sends() { return cache()->for_sends.load(std::memory_order_relaxed); }

}  // namespace mcast::pg
