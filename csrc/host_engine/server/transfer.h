// One operation whose tensors the engine copies (engine_memory=copy): the parts that have been
// copied, and those that may be.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/lane_id.h"
#include "base/region.h"
#include "base/status.h"
#include "host_engine/ipc/record.h"
#include "host_engine/server/bounce.h"
#include "host_engine/server/client_memory.h"

namespace mcast::service {

// Parts of the client's memory with their copies here. Not thread-safe.
class CopyList {
 public:
  // Due bytes are copied in the order in which they became due.
  uint32_t add(uint64_t address, std::byte* here, uint64_t length);
  // This many bytes from the start of a part may be copied; a smaller number than before has no
  // effect.
  void raise(uint32_t part, uint64_t bytes);
  void raise_all();
  bool due() const { return !due_.empty(); }
  // Drops all parts: no bytes are due now or later.
  void drop();

  // Returns the bytes to copy in the next call: of several parts, at most `bytes`.
  struct Copied {
    uint32_t part;
    uint64_t from, to;
  };
  std::vector<Copied> next(size_t bytes, std::vector<ClientMemory::Span>& spans) const;
  // The batch has been copied.
  void advance(const std::vector<Copied>& batch);

 private:
  struct Part {
    uint64_t address;
    std::byte* here;
    uint64_t length, until = 0, done = 0;
  };
  std::vector<Part> parts_;
  std::deque<uint32_t> due_;
  bool dropped_ = false;
};

// A slice of a post in the client's own memory: identifies the input or output.
struct OwnSlice {
  ipc::Role role = ipc::Role::kInput;
  uint32_t index = 0;
  uint64_t address = 0, length = 0;
};

// Made by the tenant's thread; then used under its mover's lock.
class Transfer {
 public:
  enum Way : uint8_t { kPull = 0, kPush = 1 };
  struct What {
    uint32_t group = 0;  // the connection's handle
    wire::Kind kind = wire::Kind::kBarrier;
    std::string name;  // of the public op
    Member self = 0;
    Nanos timeout = 0;
    bool staged = false;  // inputs may be read only up to allow()
  };
  struct Hooks {
    // The operation has ended and its memory is not touched any more; `held`: except by one call
    // that hangs. Called once.
    std::function<void(const Status&, bool held)> finish;
    // Fails the group, on all ranks.
    std::function<void(const Status&)> fault;
    // More of an input can be read.
    std::function<void()> wake;
  };

  // Puts slices, where the operation runs, into the places of `own`; the other slices are there
  // already. Slices that overlap or touch are in one block, so in-place operations stay in place.
  // The input of an all-gather is put where this rank's output is. The order in `inputs` and
  // `outputs` is the group's. kResourceExhausted: see BouncePool::take().
  static Result<std::shared_ptr<Transfer>> make(What what, const std::vector<OwnSlice>& own,
                                                std::vector<Slice>& inputs,
                                                std::vector<Slice>& outputs, BouncePool& pool);

  // Returns true if the mover copies this input.
  bool has_input(uint32_t input) const { return part_of(pull_of_, input) != kNoPart; }
  // This many bytes of an input can be read; of an output are final.
  void allow(uint32_t input, uint64_t bytes);
  void mark(uint32_t output, uint64_t bytes);
  // No more bytes of either follow. `all`: outputs are final.
  void close(bool all);

  bool due(Way way) const { return list(way).due(); }
  std::vector<CopyList::Copied> next(Way way, std::vector<ClientMemory::Span>& spans) const;
  void advance(Way way, const std::vector<CopyList::Copied>& batch);

  const What what;
  Hooks hooks;
  // Used by the mover.
  bool queued[2] = {false, false};
  bool ended = false, finished = false;
  Status outcome;  // set once it has ended or broken

 private:
  static constexpr uint32_t kNoPart = UINT32_MAX;
  struct Range {
    uint64_t begin, end;
    std::shared_ptr<std::byte> block;
    std::byte* base() const { return block.get() + begin % 64; }
  };
  explicit Transfer(What w) : what(std::move(w)) {}
  static uint32_t part_of(const std::vector<uint32_t>& parts, uint32_t index) {
    return index < parts.size() ? parts[index] : kNoPart;
  }
  CopyList& list(Way way) { return way == kPull ? pulls_ : pushes_; }
  const CopyList& list(Way way) const { return way == kPull ? pulls_ : pushes_; }
  Status cover(const std::vector<OwnSlice>& own, const OwnSlice* but, BouncePool& pool);
  Slice place(const OwnSlice& slice) const;
  void add_input(const OwnSlice& slice, Slice& input);

  std::vector<Range> ranges_;  // ascending
  CopyList pulls_, pushes_;
  std::vector<uint32_t> pull_of_, push_of_;  // by input, by output
  struct Pulled {
    std::shared_ptr<Region> region;
    uint32_t echo = kNoPart;  // the push that receives the same bytes
  };
  std::vector<Pulled> pulled_;  // by part of pulls_
};

}  // namespace mcast::service
