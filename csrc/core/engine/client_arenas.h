// Memory that this process and the engine of its host both map: spans of it for operations, and the
// tensors that lie in the process's ArenaPool. This process makes it: tensors are there before an
// engine is, and after it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/free_ranges.h"
#include "base/status.h"
#include "host/arena_pool.h"
#include "host/segment.h"

namespace mcast {

// Thread-safe.
class ClientArenas {
 public:
  // Has the engine map a segment: its number (ipc::Space).
  using Offer = std::function<Result<uint16_t>(const Segment& segment)>;
  explicit ClientArenas(Offer offer) : offer_(std::move(offer)) {}

  // A span of an arena, whose pages are on this process's account, not the engine's: whoever writes
  // first pays (memory cgroup), and outputs are written by the engine. It goes back when the last
  // copy of the pointer is gone, for which the arenas must still be there.
  struct Span {
    uint16_t space = 0;
    uint64_t offset = 0;  // in the arena, a multiple of kAlign
    size_t bytes = 0;
    std::byte* data = nullptr;
  };
  static constexpr size_t kAlign = 4096;
  static constexpr size_t kLeast = size_t{32} << 20;  // of an arena

  Result<std::shared_ptr<Span>> take(size_t bytes);

  // Where memory is that has pages of the process's ArenaPool alone, which the engine then has
  // mapped; none: it has not, or the engine would not.
  struct Place {
    uint16_t space;
    uint64_t offset;
  };
  std::optional<Place> find(const std::byte* data, size_t bytes);

 private:
  struct Arena {
    uint16_t space;
    Segment memory;
    FreeRanges free;
    uint64_t filled = 0;  // [0, filled) has been in spans, and has pages
  };
  std::shared_ptr<Span> carve(size_t bytes);  // null: no room
  std::shared_ptr<Span> hold(const Span& span);
  void give_back(const Span& span);

  std::optional<uint16_t> offer_pool(const ArenaPool& pool);

  const Offer offer_;
  std::mutex asking_;  // held while the engine is asked, so that one arena comes for many
  std::mutex mutex_;
  std::vector<Arena> arenas_;
  // Whether the pool was offered, and what came of it.
  std::atomic<bool> pool_offered_{false};
  std::optional<uint16_t> pool_;
};

}  // namespace mcast
