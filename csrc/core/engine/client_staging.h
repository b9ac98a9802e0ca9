// The memory of one operation of a client: the caller's slices where they lie, if they have pages
// of the process's ArenaPool alone or the engine copies by itself, else spans of arenas that stand
// for them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/counters.h"
#include "base/region.h"
#include "collective/operation.h"
#include "engine/client_arenas.h"
#include "ipc/record.h"

namespace mcast {

// How the engine reaches what this process does not copy.
struct ClientRoads {
  bool mapped = false;  // slices stay where they lie, if they have pages of the pool alone
  bool moved = false;   // the engine copies the others
};

// Which way the bytes of inputs and outputs go.
inline constexpr Counter kWaysOfMemory[] = {
    Counter::engine_mapped_bytes, Counter::engine_span_bytes, Counter::engine_moved_bytes};

// Slices that overlap or touch share a span, so what is in place stays in place. Not thread-safe.
class ClientStaging {
 public:
  // `self` is the rank. kResourceExhausted: the engine takes no more memory.
  static Result<std::unique_ptr<ClientStaging>> make(const Post& post, Member self,
                                                     ClientArenas& arenas, ClientRoads roads);
  // Of a message, which is the one output or the one input.
  static Result<std::unique_ptr<ClientStaging>> make(const Slice& message, bool receives,
                                                     ClientArenas& arenas, ClientRoads roads);

  const std::vector<ipc::SliceRun>& runs() const { return runs_; }
  size_t inputs() const { return inputs_.size(); }
  uint64_t input_bytes() const;  // that must be copied
  // Adds the bytes of all slices to kWaysOfMemory.
  void count(Counters& counters) const;
  // Copies at most `most` bytes more of input `i`, as far as it can be read. How many bytes of it
  // are there now.
  uint64_t copy_in(size_t i, size_t most);
  // Whether all of the input is there.
  bool whole(size_t i) const { return inputs_[i].copied == inputs_[i].slice.length; }
  // The results, to the caller's memory.
  void copy_out() const;
  // Takes the caller's memory away from an engine that may still write to it, or send what the
  // caller writes next. False: `may_run`, and of what it copies by itself there are outputs.
  bool withdraw(bool may_run) const;
  // What an engine may still write to is never free for others.
  void keep_outputs() const;

 private:
  // The caller's.
  struct Memory {
    std::vector<Slice> inputs, outputs;
    Member own = kNoMember;  // the input is put where this output is
  };
  ClientStaging(ClientArenas& arenas, ClientRoads roads) : arenas_(arenas), roads_(roads) {}
  static Memory memory_of(const Post& post, Member self);
  static Result<std::unique_ptr<ClientStaging>> make(Memory memory, ClientArenas& arenas,
                                                     ClientRoads roads);
  struct Piece {
    Slice slice;                 // the caller's
    std::byte* there = nullptr;  // in an arena, or the slice itself
    uint64_t copied = 0;
    bool moved = false;  // the engine copies
    bool direct() const { return there == slice.data(); }
  };
  struct Range {
    uintptr_t begin, end;
    std::shared_ptr<ClientArenas::Span> span;
    std::optional<ClientArenas::Place> mapped;  // by the engine
    std::byte* base() const { return span->data + begin % 64; }
    std::byte* data() const { return reinterpret_cast<std::byte*>(begin); }
  };
  void find_ranges(const std::vector<const std::vector<Slice>*>& slices);
  Range* range_of(const Slice& slice);  // null: of 0 bytes, or in none
  bool needs_span(const Range& range) const;
  Status cover();
  Piece place(const Slice& slice, ipc::Role role);

  ClientArenas& arenas_;
  const ClientRoads roads_;
  std::vector<Range> ranges_;  // ascending
  std::vector<Piece> inputs_, outputs_;
  std::vector<ipc::SliceRun> runs_;
};

}  // namespace mcast
