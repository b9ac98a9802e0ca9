// The donating side of repair. Donors reply at once, from verified chunks only. A root collects
// requests for its own block for a moment, and multicasts again chunks that several members lost.
// Replies are sent as fast as the requester's connection accepts them.
#include "base/coverage.h"
#include "collective/movements/repair.h"

#include <algorithm>

namespace mcast {
namespace {

constexpr size_t kRepairQueue = 256u << 10;  // bytes that wait for one asker's connection
constexpr size_t kFetchPayload = 60u << 10;  // bytes of repair per frame

}  // namespace

void Repair::on_fetch(const Frame& header, ConstBytes body, Nanos now) {
  g_.counters.add(Counter::fetches_received);
  wire::Fetch fetch;
  if (!wire::parse_fetch(body, fetch)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  // If the calls differ, the bytes would look like the requester's: sends none and informs both.
  if (g_.ops.entry(header.sequence) != nullptr &&
      !g_.agrees(header.member, header.sequence, fetch.descriptor)) {
    return;
  }
  Operation* op = g_.find(header.sequence);
  if (op == nullptr && fetch.root == g_.self) op = revive(header.sequence);
  const auto stream =
      op != nullptr && op->plan.roots > 0 ? op->stream_of(fetch.root) : std::nullopt;
  const bool in_bounds =
      stream && (stream == op->own.stream ? op->own.repairs.has_value() : op->fetch.has_value()) &&
      std::all_of(fetch.ranges.begin(), fetch.ranges.end(),
                  [op](ChunkRange r) { return r.end <= op->plan.chunks; });
  if (!in_bounds) {
    if (header.sequence < g_.ops.base()) g_.counters.add(Counter::stale);
    say_not_have(header.sequence, header.member, header.argument, fetch.root, fetch.ranges, false);
    return;
  }
  // A member that has requested twice may not receive multicast at all: reply by stream then.
  if (stream == op->own.stream && fetch_attempts(header.argument) < 2) {
    op->own.repairs->add(header.member, header.argument, std::move(fetch.ranges), now);
    g_.ops.touch(*op);
    return;
  }
  donate(*op, *stream, header.member, header.argument, fetch.ranges);
}

bool Repair::readable(const Operation& op, uint32_t stream) {
  return op.own.stream == stream && op.plan.small ? op.own.started : op.data_held();
}

void Repair::donate(Operation& op, uint32_t stream, Member asker, uint32_t id,
                    const std::vector<ChunkRange>& ranges) {
  const bool own = op.own.stream == stream;
  const bool whole = readable(op, stream);
  const Chunk own_end = own && op.own.sender ? op.own.sender->sent() : 0;
  std::vector<ChunkRange> missing, present;
  for (const ChunkRange& r : ranges) {
    Chunk at = r.first;
    while (at < r.end) {
      const auto held = [&](Chunk c) {
        return whole && (own ? c < own_end : op.receivers[stream].has(c));
      };
      const bool have = held(at);
      Chunk end = at + 1;
      while (end < r.end && held(end) == have) end++;
      (have ? present : missing).push_back({at, end});
      at = end;
    }
  }
  if (!present.empty()) {
    const std::vector<ChunkRange> sent = grant_reads(op, stream, asker, id, present);
    if (!sent.empty()) {
      parked_.park(asker, {op.post.sequence, op.member_of(stream), id, ChunkSet(sent)});
    }
  }
  if (!missing.empty()) {
    say_not_have(op.post.sequence, asker, id, op.member_of(stream), missing, false);
  }
}

// Requests are collected for a moment if other members may lack the same chunks.
void Repair::start_server(Operation& op) {
  op.own.repairs.emplace(g_.size > 2 ? g_.params.alpha / 4 : 0, op.plan.chunks);
}

// Sends pending replies as far as connections accept them: more than the link can carry would only
// queue up behind it.
void Repair::serve_parked() {
  if (parked_.empty()) return;
  const auto per_frame =
      static_cast<Chunk>(std::max<size_t>(1, kFetchPayload / g_.params.agreed.chunk));
  for (const Member asker : parked_.askers()) {
    if (!g_.gone[asker].ok()) {
      parked_.drop(asker);
      continue;
    }
    if (g_.port.queued(asker, Channel::kRepair) >= kRepairQueue) MCAST_COVER(repair_queue_full);
    RepairQueue::Request part;
    while (g_.port.queued(asker, Channel::kRepair) < kRepairQueue &&
           parked_.next(asker, per_frame, part)) {
      Operation* const op = g_.find(part.sequence);
      const auto stream = op != nullptr ? op->stream_of(part.root) : std::nullopt;
      if (!stream || !readable(*op, *stream)) continue;
      for (const ChunkRange& r : part.chunks) send_fetch_data(*op, *stream, asker, part.id, r);
    }
  }
}

void Repair::send_fetch_data(Operation& op, uint32_t stream, Member asker, uint32_t id,
                             ChunkRange range) {
  const Chunk per_frame = static_cast<Chunk>(std::max<size_t>(1, kFetchPayload / op.plan.chunk));
  const ConstBytes source = op.source(stream);
  for (Chunk at = range.first; at < range.end; at += per_frame) {
    const ChunkRange part{at, std::min(range.end, at + per_frame)};
    const size_t bytes = op.plan.length(part);
    wire::Writer head;
    wire::put_fetch_data_head(head, op.member_of(stream), part);
    g_.send_frame(asker, Channel::kRepair, wire::FrameType::kFetchData, op.post.sequence, id,
                  head.bytes(), source.subspan(static_cast<size_t>(at) * op.plan.chunk, bytes));
    g_.counters.add(Counter::repair_chunks_sent, part.size());
    g_.counters.add(Counter::repair_bytes_sent, bytes);
    bytes_[asker].second += bytes;
  }
}

void Repair::say_not_have(Sequence sequence, Member asker, uint32_t id, Member root,
                          std::span<const ChunkRange> ranges, bool coming) {
  if (!coming) g_.counters.add(Counter::not_have_sent);
  wire::Writer body;
  wire::put_ranges(body, root, ranges);
  g_.send_frame(asker, Channel::kControl,
                coming ? wire::FrameType::kComing : wire::FrameType::kNotHave, sequence, id,
                body.bytes());
}

void Repair::serve(Operation& op, Nanos now) {
  if (now < op.own.repairs->deadline()) return;
  std::vector<ChunkRange> again;
  std::vector<RepairServer::Answer> answers;
  op.own.repairs->flush(again, answers);
  for (const ChunkRange& r : again) op.own.sender->resend(r);
  for (const RepairServer::Answer& a : answers) {
    if (!a.unicast.empty()) donate(op, *op.own.stream, a.asker, a.id, a.unicast);
    if (!a.coming.empty()) {
      say_not_have(op.post.sequence, a.asker, a.id, g_.self, a.coming, true);
    }
  }
}

// A completed operation of this root, with the machines that repair it. Null if we cannot repair
// it.
Operation* Repair::revive(Sequence sequence) {
  const OperationQueue::Entry* const entry = g_.ops.entry(sequence);
  if (entry == nullptr || entry->kept.empty()) return nullptr;
  MCAST_COVER(own_block_revived);
  auto owned = std::make_unique<Operation>();
  Operation& op = *owned;
  op.post.sequence = sequence;
  op.post.descriptor = entry->descriptor();
  op.self = g_.self;
  op.plan = make_plan(op.post.descriptor, g_.params.agreed);
  op.own.stream = op.stream_of(g_.self);
  op.finished = op.local_complete = op.own.started = true;
  SenderParams sender;
  sender.chunks = sender.eager = op.plan.chunks;
  sender.batch = op.plan.batch;
  op.own.sender.emplace(sender);
  op.own.sender->set_all_sent();
  start_server(op);
  op.movements.add(streams_);
  return &g_.ops.revive(sequence, std::move(owned));
}

}  // namespace mcast
