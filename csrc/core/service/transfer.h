// One operation whose tensors the engine copies (engine_memory=copy): what of them has been copied,
// and what may be.
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
#include "ipc/record.h"
#include "service/bounce.h"
#include "service/client_memory.h"

namespace mcast::service {

// Parts of the client's memory beside their copies. Not thread-safe.
class CopyList {
 public:
  // Bytes that are due are copied in the order in which they became so.
  uint32_t add(uint64_t address, std::byte* here, uint64_t length);
  // So many bytes from the start of a part may be copied; less than before: nothing.
  void raise(uint32_t part, uint64_t bytes);
  void raise_all();
  bool due() const { return !due_.empty(); }
  // Nothing is due, nor will be.
  void drop();

  // What is to be copied by the next call: of several parts, at most `bytes`.
  struct Copied {
    uint32_t part;
    uint64_t from, to;
  };
  std::vector<Copied> next(size_t bytes, std::vector<ClientMemory::Span>& spans) const;
  // That is done.
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

// A slice of a post that lies in the client's own memory: which input or output it is.
struct OwnSlice {
  ipc::Role role = ipc::Role::kInput;
  uint32_t index = 0;
  uint64_t address = 0, length = 0;
};

// Made by the tenant's thread; then under its mover's lock.
class Transfer {
 public:
  enum Way : uint8_t { kPull = 0, kPush = 1 };
  struct What {
    uint32_t group = 0;  // the connection's handle
    wire::Kind kind = wire::Kind::kBarrier;
    std::string name;  // of the public op
    Member self = 0;
    Nanos timeout = 0;
    bool staged = false;  // inputs may be read only as allow() says
  };
  struct Hooks {
    // The operation has ended and its memory is not touched any more; `held`: but for one call that
    // hangs. Once.
    std::function<void(const Status&, bool held)> finish;
    // The group is to fail, on all ranks.
    std::function<void(const Status&)> fault;
    // More of an input can be read.
    std::function<void()> wake;
  };

  // Puts slices into the places of `own`, where the operation runs; the others are there already.
  // Slices that overlap or touch lie in one block, so what is in place stays in place. The input of
  // an all-gather is put where this rank's output is. Its order in `inputs` and `outputs` is the
  // group's. kResourceExhausted: BouncePool::take().
  static Result<std::shared_ptr<Transfer>> make(What what, const std::vector<OwnSlice>& own,
                                                std::vector<Slice>& inputs,
                                                std::vector<Slice>& outputs, BouncePool& pool);

  // Whether the mover copies this input.
  bool has_input(uint32_t input) const { return part_of(pull_of_, input) != kNoPart; }
  // So many bytes of an input can be read; of an output are final.
  void allow(uint32_t input, uint64_t bytes);
  void mark(uint32_t output, uint64_t bytes);
  // No more of either. `all`: outputs are final.
  void close(bool all);

  bool due(Way way) const { return list(way).due(); }
  std::vector<CopyList::Copied> next(Way way, std::vector<ClientMemory::Span>& spans) const;
  void advance(Way way, const std::vector<CopyList::Copied>& batch);

  const What what;
  Hooks hooks;
  // The mover's.
  bool queued[2] = {false, false};
  bool ended = false, finished = false;
  Status outcome;  // once ended, or broken

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
    uint32_t echo = kNoPart;  // the push that gets the same bytes
  };
  std::vector<Pulled> pulled_;  // by part of pulls_
};

}  // namespace mcast::service
