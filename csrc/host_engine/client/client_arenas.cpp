// Arenas in order of creation. Their address space is kept as long as the link lives. Their sizes
// are powers of two, so that a new one is needed only when spans need twice as much as before.
// Pages of free spans are kept for the next step, up to the recent peak of use; the rest is
// returned to the system.
#include "host_engine/client/client_arenas.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace mcast {

namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int kFill = 23;
#else
constexpr int kFill = MADV_POPULATE_WRITE;
#endif

// New pages, which read as zeros and are not used yet.
void fill(std::byte* data, size_t bytes) {
  if (::madvise(data, bytes, kFill) == 0) return;
  for (size_t at = 0; at < bytes; at += ClientArenas::kAlign) {  // before Linux 5.14
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

}  // namespace

std::vector<ClientArenas::Hole> ClientArenas::Arena::claim(uint64_t begin, uint64_t end) {
  std::vector<Hole> found;
  auto it = holes.upper_bound(begin);
  if (it != holes.begin() && std::prev(it)->second > begin) --it;
  while (it != holes.end() && it->first < end) {
    const Hole hole{it->first, it->second};
    found.push_back({std::max(hole.begin, begin), std::min(hole.end, end)});
    it = holes.erase(it);
    if (hole.begin < begin) holes.emplace(hole.begin, begin);
    if (hole.end > end) holes.emplace(end, hole.end);
  }
  return found;
}

bool ClientArenas::Arena::punch(uint64_t begin, uint64_t end) {
  if (::madvise(memory.data() + begin, end - begin, MADV_REMOVE) != 0) return false;
  (void)claim(begin, end);
  holes.emplace(begin, end);
  return true;
}

void ClientArenas::Peak::take(size_t bytes) {
  if (++takes_ > kTakes) {
    before_ = std::exchange(peak_, now_);
    takes_ = 1;
  }
  now_ += bytes;
  peak_ = std::max(peak_, now_);
}

std::shared_ptr<ClientArenas::Span> ClientArenas::carve(size_t bytes) {
  Span span;
  std::vector<Hole> holes;
  std::byte* base = nullptr;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    for (Arena& arena : arenas_) {
      const auto taken = arena.free.take(bytes);
      if (!taken) continue;
      base = arena.memory.data();
      span = {arena.space, taken->at, bytes, base + taken->at};
      holes = arena.claim(taken->at, taken->at + bytes);
      kept_ -= taken->touched;
      peak_.take(bytes);
      break;
    }
  }
  if (span.data == nullptr) return nullptr;
  for (const Hole& hole : holes) fill(base + hole.begin, hole.end - hole.begin);
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
  // (No arena is as large as the largest power of two.)
  const size_t size = std::max(bytes > SIZE_MAX / 2 ? bytes : std::bit_ceil(bytes), kLeast);
  Result<Segment> made = Segment::create("torch-mcast arena", size);
  if (!made.ok()) return made.status();
  const Result<uint16_t> space = offer_(*made);
  if (!space.ok()) return space.status();
  made->close_fd();
  // (Another thread must not take part of the span that the arena is made for.)
  FreeRanges rest(size);
  (void)rest.take(bytes);
  std::byte* const data = made->data();
  fill(data, bytes);
  const Span span{*space, 0, bytes, data};
  {
    const std::lock_guard<std::mutex> held(mutex_);
    arenas_.push_back({*space, std::move(made).value(), std::move(rest), {}});
    if (bytes < size) arenas_.back().holes.emplace(bytes, size);
    peak_.take(bytes);
  }
  return hold(span);
}

Result<uint16_t> ClientArenas::offer_pool(const ArenaPool& pool) {
  if (pool_offered_.load(std::memory_order_acquire)) return pool_;
  const std::lock_guard<std::mutex> one(asking_);
  if (pool_offered_.load(std::memory_order_acquire)) return pool_;
  Result<uint16_t> space = offer_(pool.segment());
  if (!space.ok()) {
    log(LogLevel::kWarn, "engine_memory=map: tensors are copied: %s",
        space.status().message().c_str());
    // An engine that was only slow is asked again.
    if (space.status().code() == Code::kTimeout) return space;
  }
  pool_ = std::move(space);
  pool_offered_.store(true, std::memory_order_release);
  return pool_;
}

Status ClientArenas::map(const ArenaPool& pool) { return offer_pool(pool).status(); }

std::optional<ClientArenas::Place> ClientArenas::find(const std::byte* data, size_t bytes) {
  ArenaPool* const pool = ArenaPool::of_process();
  if (pool == nullptr || bytes == 0) return std::nullopt;
  const std::optional<uint64_t> at = pool->offset_of(data, bytes);
  if (!at || !pool->has_pages_alone(data, bytes)) return std::nullopt;
  const Result<uint16_t> space = offer_pool(*pool);
  if (!space.ok()) return std::nullopt;
  return Place{*space, *at};
}

void ClientArenas::give_back(const Span& span) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto arena = std::find_if(arenas_.begin(), arenas_.end(),
                                  [&](const Arena& a) { return a.space == span.space; });
  if (arena == arenas_.end()) return;
  arena->free.give_back(span.offset, {span.bytes, span.bytes});
  kept_ += span.bytes;
  peak_.give_back(span.bytes);
  trim();
}

// Newest arenas first: spans are taken from older ones.
void ClientArenas::trim() {
  const auto few = [this] { return kept_ <= std::max(kAlwaysKept, peak_.spare()); };
  for (auto arena = arenas_.rbegin(); arena != arenas_.rend() && !few(); ++arena) {
    arena->free.untouch(few, [&](uint64_t at, const FreeRanges::Range& range) {
      if (!arena->punch(at, at + range.bytes)) return false;
      kept_ -= range.touched;
      return true;
    });
  }
}

}  // namespace mcast
