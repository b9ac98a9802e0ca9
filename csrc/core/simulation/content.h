// What ranks send in a simulation, and the memory that it is in: streams of mixed words, so that a
// chunk in the wrong place, of another root or of another operation cannot look right.
//
// Two ways. Pages are one rank's memory for one operation, with guards around it, and after it they
// are nobody's. Where ranks are too many for that, all ranks read one Reference, and each keeps a
// Ledger of what came.
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/landing.h"
#include "base/region.h"
#include "base/types.h"

namespace mcast::sim {

// What root `root` of operation `op` sends, from byte `from` on.
void fill_pattern(uint64_t op, uint32_t root, Bytes out, size_t from = 0);
// Index of the first byte that differs from the pattern; bytes.size() if none does.
size_t check_pattern(uint64_t op, uint32_t root, ConstBytes bytes);

// Memory of its own, 64 guard bytes on either side.
class Pages {
 public:
  // Where there is none, the program ends.
  explicit Pages(size_t size);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() { return base_ + kGuard; }
  const std::byte* data() const { return base_ + kGuard; }
  size_t size() const { return size_; }
  Bytes bytes() { return {data(), size_}; }
  // Nobody wrote beside it. Not after give_back().
  bool intact() const;
  // It is its owner's again: overwritten, and whoever touches it from now on dies of it.
  // `gathered`: who reads it does not, since a device may still be about to
  // (Datagram::commit_gather).
  void give_back(bool gathered = false);

 private:
  static constexpr size_t kGuard = 64;
  std::byte* base_ = nullptr;
  size_t size_, mapped_;
};

// What all blocks of an operation look like, once for all ranks: their source, and what they have
// received.
class Reference {
 public:
  // Streams of `block` bytes; of a broadcast one, `root`'s.
  Reference(uint64_t op, uint32_t streams, size_t block, uint32_t root);
  // Other contents: streams of equal length, in memory that nobody else writes to.
  Reference(std::shared_ptr<Pages> pages, uint32_t streams);
  uint64_t op() const { return op_; }
  Slice stream(uint32_t s) const;
  uint32_t streams() const { return streams_; }
  size_t block() const { return block_; }
  // Nobody has written to it. Not of other contents.
  bool intact() const;

 private:
  const uint64_t op_;
  const uint32_t streams_, root_;
  const size_t block_;
  std::shared_ptr<Pages> pages_;
  std::shared_ptr<Region> region_;
};

// What one rank has received of an operation, apart from what the engine notes.
class Ledger final : public Landing {
 public:
  // `own`: the stream that it sends; streams() for none.
  Ledger(std::shared_ptr<const Reference> reference, uint32_t own);
  void place(uint32_t stream, uint64_t offset, ConstBytes bytes) override;
  // "", or what was wrong: bytes in the wrong place or twice, or (of an operation that is over)
  // some that have not come.
  std::string verdict() const;

 private:
  static constexpr size_t kUnit = 64;  // bytes of one bit; chunks are multiples of it
  const std::shared_ptr<const Reference> reference_;
  const uint32_t own_;
  const size_t words_;            // of one stream
  std::vector<uint64_t> placed_;  // by stream, words_ each
  uint64_t bytes_ = 0;
  std::string wrong_;
};

}  // namespace mcast::sim
