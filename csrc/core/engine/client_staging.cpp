// The caller's slices are sorted by address and joined where they overlap or touch; each joint
// range gets a span of its own, in which every slice lies as far from the start as in the caller's
// memory (and as far from a cache line's start). An all-gather's own input is put where its own
// output lies: for the engine it is in place, and it is copied once.
//
// Slices that lie in the process's ArenaPool need none of that: the engine has it mapped. Nor do
// others where the engine copies: it does the same in its own memory (service/transfer.cpp).
#include "engine/client_staging.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/join_ranges.h"
#include "base/log.h"
#include "base/streaming_copy.h"

namespace mcast {
namespace {

uintptr_t address_of(const Slice& slice) { return reinterpret_cast<uintptr_t>(slice.data()); }

}  // namespace

ClientStaging::Memory ClientStaging::memory_of(const Post& post, Member self) {
  if (post.reduce) {
    const bool takes = post.descriptor.kind != wire::Kind::kReduce || post.descriptor.root == self;
    Memory m{post.reduce->inputs, {}};
    if (takes) m.outputs = {post.reduce->output};  // of 0 bytes, too
    return m;
  }
  if (post.exchange) return {post.exchange->inputs, post.exchange->outputs};
  switch (post.descriptor.kind) {
    case wire::Kind::kAllgather:
      return {{post.input}, post.outputs, self};
    case wire::Kind::kBroadcast:
      if (post.descriptor.root == self) return {{post.input}, {}};
      return {{}, post.outputs};
    default:
      return {};
  }
}

Status ClientStaging::cover(std::vector<Range> wanted) {
  join_ranges(std::move(wanted), ranges_);
  for (Range& range : ranges_) {
    auto span = arenas_.take(range.end - range.begin + range.begin % 64);
    if (!span.ok()) return span.status();
    range.span = std::move(span).value();
  }
  return {};
}

void ClientStaging::add_run(const std::byte* there, uint64_t length, ipc::Role role,
                            const Range& range) {
  const auto offset = static_cast<uint64_t>(there - range.span->data);
  ipc::add_slice(runs_, static_cast<ipc::Space>(range.span->space), role,
                 range.span->offset + offset, length);
}

// Looked up once more: a tensor that was in the pool a moment ago may be there no more.
Status ClientStaging::place(const Slice& slice, ipc::Role role, Piece& piece) {
  if (slice.length == 0) {
    ipc::add_slice(runs_, ipc::Space::kNone, role, 0, 0);
    piece = {slice, nullptr, 0};
    return {};
  }
  const uintptr_t at = address_of(slice);
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), at,
                                     [](uintptr_t a, const Range& r) { return a < r.begin; });
  if (next != ranges_.begin() && at < std::prev(next)->end) {
    const auto range = std::prev(next);
    std::byte* const there = range->base() + (at - range->begin);
    add_run(there, slice.length, role, *range);
    piece = {slice, there, 0};
    return {};
  }
  const auto there = in_pool(slice);
  if (!there && roads_.moved) {
    ipc::add_slice(runs_, ipc::Space::kOwn, role, address_of(slice), slice.length);
    piece = {slice, slice.data(), 0, true};
    return {};
  }
  if (!there) return Status(Code::kUnavailable, "its memory was withdrawn from the engine");
  ipc::add_slice(runs_, static_cast<ipc::Space>(there->space), role, there->offset, slice.length);
  if (role == ipc::Role::kOutput) ArenaPool::of_process()->populate(slice.data(), slice.length);
  piece = {slice, slice.data(), 0};
  return {};
}

std::optional<ClientArenas::Place> ClientStaging::in_pool(const Slice& slice) {
  if (!roads_.mapped) return std::nullopt;
  return arenas_.find(slice.data(), slice.length);
}

Result<std::unique_ptr<ClientStaging>> ClientStaging::make(const Post& post, Member self,
                                                           ClientArenas& arenas,
                                                           ClientRoads roads) {
  return make(memory_of(post, self), arenas, roads);
}

Result<std::unique_ptr<ClientStaging>> ClientStaging::make(const Slice& message, bool receives,
                                                           ClientArenas& arenas,
                                                           ClientRoads roads) {
  Memory memory;
  (receives ? memory.outputs : memory.inputs) = {message};
  return make(std::move(memory), arenas, roads);
}

Result<std::unique_ptr<ClientStaging>> ClientStaging::make(Memory memory, ClientArenas& arenas,
                                                           ClientRoads roads) {
  std::unique_ptr<ClientStaging> staging(new ClientStaging(arenas, roads));
  // An input that the engine reaches is copied by the engine.
  const bool in_place = memory.own != kNoMember && staging->needs_span(memory.inputs[0]);
  std::vector<Range> wanted;
  const auto want = [&](const Slice& s) {
    if (staging->needs_span(s))
      wanted.push_back({address_of(s), address_of(s) + s.length, nullptr});
  };
  for (const Slice& s : memory.outputs) want(s);
  if (!in_place) {
    for (const Slice& s : memory.inputs) want(s);
  }
  if (Status status = staging->cover(std::move(wanted)); !status.ok()) return status;
  for (const Slice& s : memory.inputs) {
    Piece piece;
    const Slice& where = in_place ? memory.outputs[memory.own] : s;
    if (Status status = staging->place(where, ipc::Role::kInput, piece); !status.ok())
      return status;
    piece.slice = s;
    staging->inputs_.push_back(std::move(piece));
  }
  for (const Slice& s : memory.outputs) {
    Piece piece;
    if (Status status = staging->place(s, ipc::Role::kOutput, piece); !status.ok()) return status;
    staging->outputs_.push_back(std::move(piece));
  }
  return staging;
}

uint64_t ClientStaging::input_bytes() const {
  uint64_t sum = 0;
  for (const Piece& piece : inputs_) sum += piece.direct() ? 0 : piece.slice.length;
  return sum;
}

uint64_t ClientStaging::copy_in(size_t i, size_t most) {
  Piece& piece = inputs_[i];
  const Slice& s = piece.slice;
  if (s.length == 0) return 0;
  const uint64_t readable = s.region->readable();
  const uint64_t there = std::min(s.length, readable > s.offset ? readable - s.offset : 0);
  if (piece.direct()) return piece.copied = there;
  const uint64_t end = std::min<uint64_t>(there, piece.copied + most);
  if (end > piece.copied) {
    copy_result(piece.there + piece.copied, s.data() + piece.copied, end - piece.copied, s.length);
    streaming_fence();
    piece.copied = end;
  }
  return piece.copied;
}

void ClientStaging::copy_out() const {
  for (const Piece& piece : outputs_) {
    if (piece.slice.length == 0 || piece.direct()) continue;
    copy_result(piece.slice.data(), piece.there, piece.slice.length, piece.slice.length);
  }
  streaming_fence();
}

bool ClientStaging::withdraw(bool may_run) const {
  uint64_t late = 0;
  for (const auto* pieces : {&inputs_, &outputs_}) {
    for (const Piece& piece : *pieces) {
      if (piece.slice.length == 0 || !piece.direct()) continue;
      if (piece.moved) {
        if (may_run && pieces == &outputs_) late += piece.slice.length;
        continue;
      }
      if (ArenaPool::of_process()->make_private(piece.slice.data(), piece.slice.length)) continue;
      late += piece.slice.length;
    }
  }
  if (late == 0) return true;
  log(LogLevel::kError,
      "%llu bytes of a tensor could not be withdrawn from an engine that is "
      "lost: until its process ends they may change",
      static_cast<unsigned long long>(late));
  return false;
}

void ClientStaging::keep_outputs() const {
  static std::mutex mutex;
  static auto& kept = *new std::vector<Slice>;
  const std::lock_guard<std::mutex> held(mutex);
  for (const Piece& piece : outputs_) kept.push_back(piece.slice);
}

}  // namespace mcast
