// The data that ranks send in a simulation, and its memory: streams of mixed words, so that a chunk
// in the wrong place, of another root or of another operation never compares equal.
//
// There are two ways to hold it. Pages are one rank's memory for one operation, with guard bytes
// around it; they become inaccessible when the operation ends. In worlds with too many ranks for
// that, all ranks read one Reference, and each keeps a Ledger of the bytes that arrived.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/landing.h"
#include "base/region.h"
#include "base/types.h"

namespace mcast::sim {

// Fills `out` with the data that `root` sends in operation `op`, from byte `from` on.
void fill_pattern(uint64_t op, uint32_t root, Bytes out, size_t from = 0);
// Index of the first byte that differs from the pattern; bytes.size() if none does.
size_t check_pattern(uint64_t op, uint32_t root, ConstBytes bytes);

// Memory of its own, 64 guard bytes on either side.
class Pages {
 public:
  // Ends the program if no memory is available.
  explicit Pages(size_t size);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() { return base_ + kGuard; }
  const std::byte* data() const { return base_ + kGuard; }
  size_t size() const { return size_; }
  Bytes bytes() { return {data(), size_}; }
  // Returns true if no guard byte was overwritten. Not callable after give_back().
  bool intact() const;
  // Returns the pages to their owner: overwrites them and makes every later access fault.
  // `gathered`: reads do not fault, since a device may still be about to read
  // (Datagram::commit_gather).
  void give_back(bool gathered = false);

 private:
  static constexpr size_t kGuard = 64;
  std::byte* base_ = nullptr;
  size_t size_, mapped_;
};

// The contents of all blocks of an operation, held once for all ranks: the source of what they
// send, and the expected value of what they receive.
class Reference {
 public:
  // Streams of `block` bytes; of a broadcast one, `root`'s.
  Reference(uint64_t op, uint32_t streams, size_t block, uint32_t root);
  // Uses other contents: streams of equal length, in memory that nobody else writes to.
  Reference(std::shared_ptr<Pages> pages, uint32_t streams);
  uint64_t op() const { return op_; }
  Slice stream(uint32_t s) const;
  uint32_t streams() const { return streams_; }
  size_t block() const { return block_; }
  // Returns true if nobody has written to it. Not callable for other contents.
  bool intact() const;

 private:
  const uint64_t op_;
  const uint32_t streams_, root_;
  const size_t block_;
  std::shared_ptr<Pages> pages_;
  std::shared_ptr<Region> region_;
};

// Records which bytes of an operation one rank has received, independently of the engine's own
// records.
class Ledger final : public Landing {
 public:
  // `own`: the stream that this rank sends; streams() for none.
  Ledger(std::shared_ptr<const Reference> reference, uint32_t own);
  void place(uint32_t stream, uint64_t offset, ConstBytes bytes) override;
  // Returns "", or what is wrong: bytes in the wrong place, bytes received twice, or (once the
  // operation is over) bytes missing.
  std::string verdict() const;

 private:
  static constexpr size_t kUnit = 64;  // bytes per bit; chunks are multiples of it
  const std::shared_ptr<const Reference> reference_;
  const uint32_t own_;
  const size_t words_;            // of one stream
  std::vector<uint64_t> placed_;  // by stream, words_ each
  uint64_t bytes_ = 0;
  std::string wrong_;
};

}  // namespace mcast::sim
