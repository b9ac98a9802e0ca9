// Memory that this process and the engine of its host both map: spans for operations, and the
// tensors in the process's ArenaPool. This process creates the memory, because tensors may exist
// before an engine does, and after it.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/free_ranges.h"
#include "base/status.h"
#include "shm/arena_pool.h"
#include "shm/segment.h"

namespace mcast {

// Thread-safe.
class ClientArenas {
 public:
  // Makes the engine map a segment. Returns its number (ipc::Space).
  using Offer = std::function<Result<uint16_t>(const Segment& segment)>;
  explicit ClientArenas(Offer offer) : offer_(std::move(offer)) {}

  // A span of an arena. Its pages are charged to this process, not to the engine: the first writer
  // is charged (memory cgroup), and the engine writes outputs. It is returned with the last copy of
  // the pointer, and the arenas must outlive that.
  struct Span {
    uint16_t space = 0;
    uint64_t offset = 0;  // in the arena, a multiple of kAlign
    size_t bytes = 0;
    std::byte* data = nullptr;
  };
  static constexpr size_t kAlign = 4096;
  static constexpr size_t kLeast = size_t{32} << 20;  // least bytes of an arena
  // Pages of free spans that are kept whatever the recent use.
  static constexpr size_t kAlwaysKept = size_t{256} << 20;

  Result<std::shared_ptr<Span>> take(size_t bytes);

  // Location of memory whose pages all belong to the process's ArenaPool; makes the engine map the
  // pool. Nullopt if the pages do not, or if the engine refuses.
  struct Place {
    uint16_t space;
    uint64_t offset;
  };
  std::optional<Place> find(const std::byte* data, size_t bytes);
  // Makes the engine map the process's ArenaPool, once. The error says why it refuses.
  Status map(const ArenaPool& pool);

 private:
  struct Hole {
    uint64_t begin, end;
  };
  struct Arena {
    uint16_t space;
    Segment memory;
    FreeRanges free;
    std::map<uint64_t, uint64_t> holes;  // begin -> end of ranges without pages

    // The holes in a range that is being taken; they have pages from then on.
    std::vector<Hole> claim(uint64_t begin, uint64_t end);
    // Returns the pages of a free range to the system.
    bool punch(uint64_t begin, uint64_t end);
  };
  // Largest number of bytes of spans in use at once, over the last takes.
  class Peak {
   public:
    void take(size_t bytes);
    void give_back(size_t bytes) { now_ -= bytes; }
    // Bytes beyond those in use that were needed recently.
    size_t spare() const { return std::max(before_, peak_) - now_; }

   private:
    static constexpr uint32_t kTakes = 64;
    size_t now_ = 0, peak_ = 0, before_ = 0;
    uint32_t takes_ = 0;
  };
  std::shared_ptr<Span> carve(size_t bytes);  // null: no room
  std::shared_ptr<Span> hold(const Span& span);
  void give_back(const Span& span);
  void trim();  // mutex_ held

  Result<uint16_t> offer_pool(const ArenaPool& pool);

  const Offer offer_;
  // Held while the engine is asked, so that concurrent requests share one arena.
  std::mutex asking_;
  std::mutex mutex_;
  std::vector<Arena> arenas_;
  Peak peak_;
  size_t kept_ = 0;  // most bytes of free pages
  // Whether the pool was offered, and the result.
  std::atomic<bool> pool_offered_{false};
  Result<uint16_t> pool_{uint16_t{0}};
};

}  // namespace mcast
