// Memory of this process that other processes of its host map: what lies here is read and written
// in place, by ranks of one host and by the engine of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "base/free_ranges.h"
#include "host/segment.h"

namespace mcast {

// One sealed memfd, as large as it may ever become: pages exist when they are touched. Thread-safe.
// In the child of a fork the memory is there at the same addresses, private from then on; blocks
// can be released there, not allocated, and the process has no pool until it opens one. The child
// sees what the parent writes to pages that it has not written itself, so a block that is older
// than a fork is not used again, once released, before that child and its children have ended (or
// called exec).
class ArenaPool {
 public:
  // `bytes` of address space, a multiple of kPage.
  static Result<std::unique_ptr<ArenaPool>> create(size_t bytes);

  // The process's pool, made at the first call, with room for as much as the machine has, where
  // limits allow it; it stays.
  static Result<ArenaPool*> open_for_process();
  // Null until then.
  static ArenaPool* of_process() noexcept;

  static constexpr size_t kPage = 4096;
  // Bytes that the machine has, in whole pages.
  static size_t memory_of_machine() noexcept;

  // Whole pages, zeroed only where they are new. Null: no room; the caller takes other memory.
  std::byte* allocate(size_t bytes) noexcept;
  // False: `data` is not of this pool. Else it is what allocate() gave.
  bool release(std::byte* data) noexcept;
  // The same of the process's pool, and of those that it has from before forks.
  static bool release_any(std::byte* data) noexcept;

  // Where [data, data + bytes) lies in the segment; none: outside, or private (make_private()).
  std::optional<uint64_t> offset_of(const std::byte* data, size_t bytes) const noexcept;
  // Puts pages of [data, data + bytes) that nobody has touched on this process's account: whoever
  // writes first pays (memory cgroup).
  void populate(const std::byte* data, size_t bytes) noexcept;
  // Returns true if the pages of [data, data + bytes) hold nothing else that this process uses: it
  // begins with a page, and ends with one or with its block.
  bool has_pages_alone(const std::byte* data, size_t bytes) const noexcept;
  // Puts private pages with the same contents in the place of those of [data, data + bytes), which
  // must have them alone: processes that map the segment reach them no more. Nobody may write to
  // [data, data + bytes) meanwhile. For operations whose memory must go back although somebody else
  // may still write to it. Returns false if that is impossible; the pages are as before then.
  bool make_private(std::byte* data, size_t bytes) noexcept;

  const Segment& segment() const noexcept { return memory_; }
  // Bytes of blocks, and of pages that are kept for further ones.
  size_t in_use() const noexcept;
  size_t kept() const noexcept;

 private:
  struct Block {
    size_t bytes, asked;                 // in whole pages; of the caller
    uint64_t filled = 0, filled_to = 0;  // pages that have been populated, of the segment
    uint64_t born = 0;                   // forks before it was allocated
  };
  struct Child {
    Fd alive;             // a pipe whose other end it has; invalid: there was none to be had
    uint64_t number = 0;  // of its fork, from 1
  };
  // A released block that children still map.
  struct Withheld {
    uint64_t at;
    size_t bytes;
    uint64_t born;
  };
  explicit ArenaPool(Segment memory) : memory_(std::move(memory)), free_(memory_.size()) {}
  static void before_fork() noexcept;
  static void after_fork() noexcept;
  static void in_child() noexcept;
  void prepare_fork() noexcept;  // mutex_ held, as for the next ones
  void note_child() noexcept;    // in the parent
  void remap() noexcept;         // in the child
  bool mapped_by_children(uint64_t born) const noexcept;
  // Gives back withheld blocks whose children have ended.
  void settle();
  void give_back(uint64_t at, size_t bytes);
  void trim();
  bool inside(const std::byte* data, size_t bytes) const noexcept;
  bool alone(uint64_t at, size_t bytes) const noexcept;

  const Segment memory_;
  mutable std::mutex mutex_;  // of what follows
  std::map<uint64_t, Block> blocks_;
  FreeRanges free_;
  std::map<uint64_t, uint64_t> private_;  // offset -> end
  std::vector<Child> children_;           // that are not known to have ended, by number
  std::vector<Withheld> withheld_;
  Fd child_reads_, child_holds_;  // while a fork is under way
  uint64_t forks_ = 0;
  size_t in_use_ = 0, kept_ = 0;
  bool forked_ = false;
  ArenaPool* older_ = nullptr;  // from before a fork
};

}  // namespace mcast
