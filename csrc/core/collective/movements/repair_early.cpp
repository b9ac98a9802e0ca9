// Repair before the post. Small operations are sent unasked. A rank that has not posted one yet and
// did not receive it learns that from the root's reported position (protocol/sent_tracker.h), and
// requests all that it lacks from the root at once, so that the block is there when the call is
// made.
#include <algorithm>

#include "collective/movements/repair.h"

namespace mcast {
namespace {

constexpr size_t kEarlyPayload = 60u << 10;  // bytes per frame

}  // namespace

// Requests operations that were sent before this rank's post and are not staged. The socket was
// seen empty.
void Repair::fetch_early(Nanos now) {
  if (now < small_.tracker().deadline()) return;
  std::vector<SentTracker::Ask> asks;
  small_.tracker().due(g_.ops.next(), now, asks);
  for (const SentTracker::Ask& ask : asks) {
    std::vector<ChunkRange> missing;  // sequences
    for (Sequence s = ask.first; s < ask.end; s++) {
      if (reception_.staged(s, ask.root)) continue;
      if (missing.empty() || missing.back().end != s) missing.push_back({s, s});
      missing.back().end = s + 1;
    }
    constexpr size_t kPerFrame = 4000;
    for (std::span<const ChunkRange> left = missing; !left.empty();) {
      const auto some = left.first(std::min(left.size(), kPerFrame));
      wire::Writer body;
      wire::put_ranges(body, ask.root, some);
      g_.counters.add(Counter::early_fetches_sent);
      g_.send_frame(ask.root, Channel::kControl, wire::FrameType::kEarlyFetch, 0, 0, body.bytes());
      left = left.subspan(some.size());
    }
  }
}

void Repair::on_early_fetch(const Frame& header, ConstBytes body) {
  Member root;
  std::vector<ChunkRange> ranges;
  if (!wire::parse_ranges(body, root, ranges) || root != g_.self) {
    g_.counters.add(Counter::malformed);
    return;
  }
  for (const ChunkRange& r : ranges) {
    for (Sequence s = std::max(r.first, g_.ops.base()); s < std::min(r.end, g_.ops.next()); s++) {
      send_early(s, header.member);
    }
  }
}

// The total is no more than may be sent ahead of credit in any case.
void Repair::send_early(Sequence sequence, Member asker) {
  const OperationQueue::Entry& entry = *g_.ops.entry(sequence);
  const Operation* const op = entry.op.get();
  ConstBytes block;
  if (op == nullptr) {
    block = entry.kept;
  } else if (op->own.sender && op->plan.small && op->own.sender->all_sent()) {
    block = op->own.kept;
  }
  const size_t chunk = g_.params.agreed.chunk;
  const size_t most = std::max<size_t>(1, kEarlyPayload / chunk) * chunk;
  for (size_t at = 0; at < block.size(); at += most) {
    const ConstBytes part = block.subspan(at, std::min(most, block.size() - at));
    const auto first = static_cast<Chunk>(at / chunk);
    const auto count = static_cast<Chunk>((part.size() + chunk - 1) / chunk);
    wire::Writer head;
    wire::put_fetch_data_head(head, g_.self, {first, first + count});
    g_.send_frame(asker, Channel::kRepair, wire::FrameType::kEarlyData, sequence, entry.hash,
                  head.bytes(), part);
    g_.counters.add(Counter::early_chunks_sent, count);
  }
}

void Repair::on_early_data(const Frame& header, ConstBytes body, Nanos now) {
  wire::FetchData data;
  const size_t chunk = g_.params.agreed.chunk;
  if (!wire::parse_fetch_data(body, data) || data.root != header.member ||
      data.payload.size() > size_t{data.range.size()} * chunk ||
      data.payload.size() + chunk <= size_t{data.range.size()} * chunk) {
    g_.counters.add(Counter::malformed);
    return;
  }
  heard_[header.member] = now;
  if (g_.ops.entry(header.sequence) != nullptr &&
      !g_.agrees(header.member, header.sequence, header.argument)) {
    return;
  }
  Operation* const op = g_.find(header.sequence);
  if (header.sequence < g_.ops.next() && (op == nullptr || op->local_complete)) {
    g_.counters.add(Counter::stale);
    return;
  }
  const auto stream = op != nullptr ? op->stream_of(data.root) : std::nullopt;
  if (op != nullptr &&
      (!stream || stream == op->own.stream || op->receivers.empty() ||
       data.range.end > op->plan.chunks || data.payload.size() != op->plan.length(data.range))) {
    g_.counters.add(Counter::malformed);
    return;
  }
  for (Chunk c = data.range.first; c < data.range.end; c++) {
    const size_t at = size_t{c - data.range.first} * chunk;
    const ConstBytes part = data.payload.subspan(at, std::min(chunk, data.payload.size() - at));
    g_.counters.add(Counter::early_chunks_received);
    if (op == nullptr) {
      reception_.stage(header.sequence, {data.root, c}, header.argument, false, part);
    } else {
      op->flow.late = true;
      reception_.place(*op, *stream, c, part, false, now);
    }
  }
}

}  // namespace mcast
