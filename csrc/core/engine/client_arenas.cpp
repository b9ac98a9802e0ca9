// Arenas in the order in which they came. They are never given back while the link lives: their
// pages have been touched, and the next step wants as much again.
#include "engine/client_arenas.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/log.h"

namespace mcast {

namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int kFill = 23;
#else
constexpr int kFill = MADV_POPULATE_WRITE;
#endif

// New pages, which read as zeros and which nobody else uses yet.
void fill(std::byte* data, size_t bytes) {
  if (::madvise(data, bytes, kFill) == 0) return;
  for (size_t at = 0; at < bytes; at += ClientArenas::kAlign) {  // before Linux 5.14
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

}  // namespace

// What has never been in a span lies at an arena's end, since the lowest free range is taken.
std::shared_ptr<ClientArenas::Span> ClientArenas::carve(size_t bytes) {
  Span span;
  size_t known = bytes;  // that have pages
  {
    const std::lock_guard<std::mutex> held(mutex_);
    for (Arena& arena : arenas_) {
      const auto taken = arena.free.take(bytes);
      if (!taken) continue;
      span = {arena.space, taken->at, bytes, arena.memory.data() + taken->at};
      if (taken->at + bytes > arena.filled) {
        known = arena.filled > taken->at ? arena.filled - taken->at : 0;
        arena.filled = taken->at + bytes;
      }
      break;
    }
  }
  if (span.data == nullptr) return nullptr;
  if (known < bytes) fill(span.data + known, bytes - known);
  return hold(span);
}

std::shared_ptr<ClientArenas::Span> ClientArenas::hold(const Span& span) {
  return {new Span(span), [this](const Span* done) {
            give_back(*done);
            delete done;
          }};
}

Result<std::shared_ptr<ClientArenas::Span>> ClientArenas::take(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  if (auto span = carve(bytes)) return span;
  const std::lock_guard<std::mutex> one(asking_);
  if (auto span = carve(bytes)) return span;
  const size_t size = std::max(bytes, kLeast);
  Result<Segment> made = Segment::create("torch-mcast arena", size);
  if (!made.ok()) return made.status();
  const Result<uint16_t> space = offer_(*made);
  if (!space.ok()) return space.status();
  made->close_fd();
  // (Another thread takes none of the span that it is made for.)
  FreeRanges rest(size);
  (void)rest.take(bytes);
  std::byte* const data = made->data();
  fill(data, bytes);
  const Span span{*space, 0, bytes, data};
  {
    const std::lock_guard<std::mutex> held(mutex_);
    arenas_.push_back({*space, std::move(made).value(), std::move(rest), bytes});
  }
  return hold(span);
}

std::optional<uint16_t> ClientArenas::offer_pool(const ArenaPool& pool) {
  if (!pool_offered_.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> one(asking_);
    if (!pool_offered_.load(std::memory_order_acquire)) {
      const Result<uint16_t> space = offer_(pool.segment());
      if (space.ok()) {
        pool_ = *space;
      } else {
        log(LogLevel::kWarn, "engine_memory=map: tensors are copied: %s",
            space.status().message().c_str());
      }
      // An engine that was only slow is asked again.
      const bool again = !space.ok() && space.status().code() == Code::kTimeout;
      pool_offered_.store(!again, std::memory_order_release);
      if (again) return std::nullopt;
    }
  }
  return pool_;
}

std::optional<ClientArenas::Place> ClientArenas::find(const std::byte* data, size_t bytes) {
  ArenaPool* const pool = ArenaPool::of_process();
  if (pool == nullptr || bytes == 0) return std::nullopt;
  const std::optional<uint64_t> at = pool->offset_of(data, bytes);
  if (!at || !pool->has_pages_alone(data, bytes)) return std::nullopt;
  const std::optional<uint16_t> space = offer_pool(*pool);
  if (!space) return std::nullopt;
  return Place{*space, *at};
}

void ClientArenas::give_back(const Span& span) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto arena = std::find_if(arenas_.begin(), arenas_.end(),
                                  [&](const Arena& a) { return a.space == span.space; });
  if (arena != arenas_.end()) arena->free.give_back(span.offset, {span.bytes, 0});
}

}  // namespace mcast
