// The memory of one operation of a client: the caller's slices in place, if all their pages belong
// to the process's ArenaPool or if the engine copies by itself; otherwise spans of arenas as
// copies.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/counters.h"
#include "base/region.h"
#include "collective/operation.h"
#include "host_engine/client/client_arenas.h"
#include "host_engine/ipc/record.h"

namespace mcast {

// How the engine accesses memory that this process does not copy.
struct ClientAccess {
  bool mapped = false;  // slices stay in place if all their pages belong to the pool
  bool moved = false;   // the engine copies the others by itself
};

// Counters of the ways in which bytes of inputs and outputs travel.
inline constexpr Counter kWaysOfMemory[] = {
    Counter::engine_mapped_bytes, Counter::engine_span_bytes, Counter::engine_moved_bytes};

// Slices that overlap or touch share a span, so that in-place operations remain so. Not
// thread-safe.
class ClientStaging {
 public:
  // `self`: this rank. kResourceExhausted: the engine accepts no more memory.
  static Result<std::unique_ptr<ClientStaging>> make(const Post& post, Member self,
                                                     ClientArenas& arenas, ClientAccess access);
  // For a message, which is the only output or the only input.
  static Result<std::unique_ptr<ClientStaging>> make(const Slice& message, bool receives,
                                                     ClientArenas& arenas, ClientAccess access);

  const std::vector<ipc::SliceRun>& runs() const { return runs_; }
  size_t inputs() const { return inputs_.size(); }
  uint64_t input_bytes() const;  // bytes that must be copied
  // Adds the bytes of all slices to kWaysOfMemory.
  void count(Counters& counters) const;
  // Copies up to `most` further bytes of input `i`, as far as they can be read. Returns the number
  // of bytes copied so far.
  uint64_t copy_in(size_t i, size_t most);
  // Whether the whole input has been copied.
  bool whole(size_t i) const { return inputs_[i].copied == inputs_[i].slice.length; }
  // Copies the results to the caller's memory.
  void copy_out() const;
  // Withdraws the caller's memory from an engine that may still write to it, or read data that the
  // caller writes next. Returns false if `may_run` is set and the engine copies outputs by itself.
  bool withdraw(bool may_run) const;
  // Memory that an engine may still write to is never reused.
  void keep_outputs() const;

 private:
  // The caller's memory.
  struct Memory {
    std::vector<Slice> inputs, outputs;
    Member own = kNoMember;  // its output's memory is also the input's
  };
  ClientStaging(ClientArenas& arenas, ClientAccess access) : arenas_(arenas), access_(access) {}
  static Memory memory_of(const Post& post, Member self);
  static Result<std::unique_ptr<ClientStaging>> make(Memory memory, ClientArenas& arenas,
                                                     ClientAccess access);
  struct Piece {
    Slice slice;                 // in the caller's memory
    std::byte* there = nullptr;  // in an arena, or the slice itself
    uint64_t copied = 0;
    bool moved = false;  // copied by the engine
    bool direct() const { return there == slice.data(); }
  };
  struct Range {
    uintptr_t begin, end;
    std::shared_ptr<ClientArenas::Span> span;
    std::optional<ClientArenas::Place> mapped;  // place in the engine's mapping
    std::byte* base() const { return span->data + begin % 64; }
    std::byte* data() const { return reinterpret_cast<std::byte*>(begin); }
  };
  void find_ranges(const std::vector<const std::vector<Slice>*>& slices);
  Range* range_of(const Slice& slice);  // null: length 0, or in no range
  bool needs_span(const Range& range) const;
  Status cover();
  Piece place(const Slice& slice, ipc::Role role);

  ClientArenas& arenas_;
  const ClientAccess access_;
  std::vector<Range> ranges_;  // ascending
  std::vector<Piece> inputs_, outputs_;
  std::vector<ipc::SliceRun> runs_;
};

}  // namespace mcast
