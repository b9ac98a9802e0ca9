// Memory that this process and the engine of its host both map: spans of it for operations, and the
// tensors that lie in the process's ArenaPool. This process makes it: tensors are there before an
// engine is, and after it.
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
  // Pages of free spans that are kept whatever was in use lately.
  static constexpr size_t kAlwaysKept = size_t{256} << 20;

  Result<std::shared_ptr<Span>> take(size_t bytes);

  // Where memory is that has pages of the process's ArenaPool alone, which the engine then has
  // mapped; none: it has not, or the engine would not.
  struct Place {
    uint16_t space;
    uint64_t offset;
  };
  std::optional<Place> find(const std::byte* data, size_t bytes);
  // Has the engine map the process's ArenaPool, once. Not ok: why it would not.
  Status map(const ArenaPool& pool);

 private:
  struct Hole {
    uint64_t begin, end;
  };
  struct Arena {
    uint16_t space;
    Segment memory;
    FreeRanges free;
    std::map<uint64_t, uint64_t> holes;  // begin -> end of what has no pages

    // The holes in a range that is taken, which are none from then on.
    std::vector<Hole> claim(uint64_t begin, uint64_t end);
    // Gives the pages of a free range back.
    bool punch(uint64_t begin, uint64_t end);
  };
  // How many bytes of spans are in use at once, in the last takes.
  class Peak {
   public:
    void take(size_t bytes);
    void give_back(size_t bytes) { now_ -= bytes; }
    // Beyond what is in use: as many bytes as were needed lately.
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
  std::mutex asking_;  // held while the engine is asked, so that one arena comes for many
  std::mutex mutex_;
  std::vector<Arena> arenas_;
  Peak peak_;
  size_t kept_ = 0;  // bytes of free pages, at most
  // Whether the pool was offered, and what came of it.
  std::atomic<bool> pool_offered_{false};
  Result<uint16_t> pool_{uint16_t{0}};
};

}  // namespace mcast
