// Memory of this process that other processes of its host map: ranks of one host and the engine of
// the host read and write it in place.
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
#include "shm/segment.h"

namespace mcast {

// One sealed memfd, as large as it may ever become; pages are allocated when they are touched.
// Thread-safe. The child of a fork has the memory at the same addresses, private from then on; it
// can release blocks but not allocate them, and has no pool until it opens one. The child sees the
// parent's later writes to pages that it has not written itself; therefore a released block that is
// older than a fork is not reused before that child and its children have ended (or called exec).
class ArenaPool {
 public:
  // `bytes` of address space, a multiple of kPage.
  static Result<std::unique_ptr<ArenaPool>> create(size_t bytes);

  // The process's pool, made at the first call and kept permanently, with as much address space as
  // the machine has memory, within limits.
  static Result<ArenaPool*> open_for_process();
  // The process's pool; null before open_for_process().
  static ArenaPool* of_process() noexcept;

  static constexpr size_t kPage = 4096;
  // Memory of the machine in bytes, in whole pages.
  static size_t memory_of_machine() noexcept;

  // Returns whole pages, zeroed only if they are new; null if there is no room: the caller then
  // uses other memory.
  std::byte* allocate(size_t bytes) noexcept;
  // Releases a block from allocate(). Returns false if `data` is not of this pool.
  bool release(std::byte* data) noexcept;
  // The same for the process's pool and those inherited through forks.
  static bool release_any(std::byte* data) noexcept;

  // Offset of [data, data + bytes) in the segment; none if it is outside, or private
  // (make_private()).
  std::optional<uint64_t> offset_of(const std::byte* data, size_t bytes) const noexcept;
  // Allocates the untouched pages of [data, data + bytes) on this process's account: the memory
  // cgroup of the first writer is charged.
  void populate(const std::byte* data, size_t bytes) noexcept;
  // Returns true if the pages of [data, data + bytes) hold nothing else that this process uses: it
  // begins with a page, and ends with one or with its block.
  bool has_pages_alone(const std::byte* data, size_t bytes) const noexcept;
  // Replaces the pages of [data, data + bytes), which must have them alone, by private pages with
  // the same contents: processes that map the segment no longer reach them. Nobody may write to
  // [data, data + bytes) meanwhile. For operations that must return memory although another process
  // may still write to it. Returns false if that is impossible; the pages are unchanged then.
  bool make_private(std::byte* data, size_t bytes) noexcept;

  const Segment& segment() const noexcept { return memory_; }
  // Bytes of allocated blocks; bytes of pages kept for further ones.
  size_t in_use() const noexcept;
  size_t kept() const noexcept;

 private:
  struct Block {
    size_t bytes, asked;                 // in whole pages; as requested
    uint64_t filled = 0, filled_to = 0;  // pages that have been populated, as offsets
    uint64_t born = 0;                   // number of forks before it was allocated
  };
  struct Child {
    Fd alive;             // reading end of its pipe; invalid: no pipe could be made
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
  void prepare_fork() noexcept;  // called with mutex_ held, as the next ones
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
  mutable std::mutex mutex_;  // guards the following fields
  std::map<uint64_t, Block> blocks_;
  FreeRanges free_;
  std::map<uint64_t, uint64_t> private_;  // offset -> end
  std::vector<Child> children_;           // not known to have ended, by number
  std::vector<Withheld> withheld_;
  Fd child_reads_, child_holds_;  // while a fork is under way
  uint64_t forks_ = 0;
  size_t in_use_ = 0, kept_ = 0;
  bool forked_ = false;
  ArenaPool* older_ = nullptr;  // from before a fork
};

}  // namespace mcast
