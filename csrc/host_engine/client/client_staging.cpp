// The caller's slices are sorted by address and joined if they overlap or touch. Each joined range
// gets a span, in which every slice is as far from the start as in the caller's memory (and as far
// from the start of a cache line). An all-gather's own input is placed at its own output: for the
// engine it is in place, and it is copied once.
//
// Ranges within the process's ArenaPool that do not share a page with other memory need no span:
// the engine has them mapped. Ranges that share a page get one: their pages could not be taken away
// from an engine that is lost without blocking all writers. If the engine copies by itself, other
// ranges need no span either: it does the same in its own memory (host_engine/server/transfer.cpp).
#include "host_engine/client/client_staging.h"

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
    if (takes) m.outputs = {post.reduce->output};  // including one of 0 bytes
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

void ClientStaging::find_ranges(const std::vector<const std::vector<Slice>*>& slices) {
  std::vector<Range> wanted;
  for (const auto* list : slices) {
    for (const Slice& s : *list) {
      if (s.length > 0) wanted.push_back({address_of(s), address_of(s) + s.length, {}, {}});
    }
  }
  ranges_.clear();
  join_ranges(std::move(wanted), ranges_);
  if (!access_.mapped) return;
  for (Range& range : ranges_) {
    range.mapped = arenas_.find(range.data(), range.end - range.begin);
  }
}

ClientStaging::Range* ClientStaging::range_of(const Slice& slice) {
  const uintptr_t at = address_of(slice);
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), at,
                                     [](uintptr_t a, const Range& r) { return a < r.begin; });
  if (slice.length == 0 || next == ranges_.begin() || at >= std::prev(next)->end) return nullptr;
  return &*std::prev(next);
}

bool ClientStaging::needs_span(const Range& range) const { return !access_.moved && !range.mapped; }

Status ClientStaging::cover() {
  for (Range& range : ranges_) {
    if (!needs_span(range)) continue;
    auto span = arenas_.take(range.end - range.begin + range.begin % 64);
    if (!span.ok()) return span.status();
    range.span = std::move(span).value();
  }
  return {};
}

ClientStaging::Piece ClientStaging::place(const Slice& slice, ipc::Role role) {
  const Range* const range = range_of(slice);
  if (range == nullptr) {
    ipc::add_slice(runs_, ipc::Space::kNone, role, 0, 0);
    return {slice, nullptr, 0};
  }
  const uint64_t within = address_of(slice) - range->begin;
  if (range->span) {
    std::byte* const there = range->base() + within;
    ipc::add_slice(runs_, static_cast<ipc::Space>(range->span->space), role,
                   range->span->offset + static_cast<uint64_t>(there - range->span->data),
                   slice.length);
    return {slice, there, 0};
  }
  if (!range->mapped) {
    ipc::add_slice(runs_, ipc::Space::kOwn, role, address_of(slice), slice.length);
    return {slice, slice.data(), 0, true};
  }
  ipc::add_slice(runs_, static_cast<ipc::Space>(range->mapped->space), role,
                 range->mapped->offset + within, slice.length);
  if (role == ipc::Role::kOutput) ArenaPool::of_process()->populate(slice.data(), slice.length);
  return {slice, slice.data(), 0};
}

Result<std::unique_ptr<ClientStaging>> ClientStaging::make(const Post& post, Member self,
                                                           ClientArenas& arenas,
                                                           ClientAccess access) {
  return make(memory_of(post, self), arenas, access);
}

Result<std::unique_ptr<ClientStaging>> ClientStaging::make(const Slice& message, bool receives,
                                                           ClientArenas& arenas,
                                                           ClientAccess access) {
  Memory memory;
  (receives ? memory.outputs : memory.inputs) = {message};
  return make(std::move(memory), arenas, access);
}

Result<std::unique_ptr<ClientStaging>> ClientStaging::make(Memory memory, ClientArenas& arenas,
                                                           ClientAccess access) {
  std::unique_ptr<ClientStaging> staging(new ClientStaging(arenas, access));
  staging->find_ranges({&memory.outputs, &memory.inputs});
  // An input that the engine can access is copied by the engine.
  const Range* const own = memory.own != kNoMember ? staging->range_of(memory.inputs[0]) : nullptr;
  const bool in_place = own != nullptr && staging->needs_span(*own);
  if (in_place) staging->find_ranges({&memory.outputs});
  if (Status status = staging->cover(); !status.ok()) return status;
  for (const Slice& s : memory.inputs) {
    Piece piece = staging->place(in_place ? memory.outputs[memory.own] : s, ipc::Role::kInput);
    piece.slice = s;
    staging->inputs_.push_back(std::move(piece));
  }
  for (const Slice& s : memory.outputs) {
    staging->outputs_.push_back(staging->place(s, ipc::Role::kOutput));
  }
  return staging;
}

uint64_t ClientStaging::input_bytes() const {
  uint64_t sum = 0;
  for (const Piece& piece : inputs_) sum += piece.direct() ? 0 : piece.slice.length;
  return sum;
}

void ClientStaging::count(Counters& counters) const {
  for (const auto* const pieces : {&inputs_, &outputs_}) {
    for (const Piece& piece : *pieces) {
      const Counter way = piece.moved      ? Counter::engine_moved_bytes
                          : piece.direct() ? Counter::engine_mapped_bytes
                                           : Counter::engine_span_bytes;
      counters.add(way, piece.slice.length);
    }
  }
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
  for (const Range& range : ranges_) {
    if (!range.mapped) continue;
    const size_t bytes = range.end - range.begin;
    if (!ArenaPool::of_process()->make_private(range.data(), bytes)) late += bytes;
  }
  for (const Piece& piece : outputs_) {
    if (may_run && piece.moved) late += piece.slice.length;
  }
  if (late == 0) return true;
  log(LogLevel::kError,
      "%llu bytes of a tensor could not be withdrawn from a lost engine, which may change them "
      "until its process ends",
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
