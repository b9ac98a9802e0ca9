// Memory that this process and the engine of its host both map, and spans of it for operations.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "host/segment.h"

namespace mcast {

// Thread-safe.
class ClientArenas {
 public:
  struct Grant {
    uint16_t space = 0;  // ipc::Space
    Segment memory;
  };
  // Asks the engine for an arena of so many bytes.
  using Ask = std::function<Result<Grant>(size_t bytes)>;
  explicit ClientArenas(Ask ask) : ask_(std::move(ask)) {}

  // A span of an arena; it goes back when the last copy of the pointer is gone, for which the
  // arenas must still be there.
  struct Span {
    uint16_t space = 0;
    uint64_t offset = 0;  // in the arena, a multiple of kAlign
    size_t bytes = 0;
    std::byte* data = nullptr;
  };
  static constexpr size_t kAlign = 4096;
  static constexpr size_t kLeast = size_t{32} << 20;  // of an arena

  Result<std::shared_ptr<Span>> take(size_t bytes);

 private:
  struct Arena {
    Grant grant;
    std::map<uint64_t, uint64_t> free;  // offset -> bytes, apart from each other
  };
  std::shared_ptr<Span> carve(size_t bytes);  // mutex_ held; null: no room
  void give_back(const Span& span);

  const Ask ask_;
  std::mutex asking_;  // held while the engine is asked, so that one arena comes for many
  std::mutex mutex_;
  std::vector<Arena> arenas_;
};

}  // namespace mcast
