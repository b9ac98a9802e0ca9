// Repairs by one-sided reads, if the transport has them (verbs: RDMA Read). A donor that holds the
// chunks replies to a request with permission to read them instead of the bytes, which costs it one
// small frame whatever their size. The requester reads range by range into the transport's own
// memory and places the chunks as if they had arrived in a frame. Granted data cannot change any
// more: chunks are placed once, and a large operation ends on no rank before it is complete
// everywhere, with no read outstanding. A requester is not complete before its reads are over, even
// if their chunks have arrived otherwise. So donors release granted memory when the operation ends.
// Small operations reply with bytes: their copies are not registered.
#include <algorithm>
#include <utility>

#include "collective/movements/repair.h"

namespace mcast {

// Allows `asker` to read `ranges`, with a frame per piece of memory that the transport exposes.
// Returns the ranges that cannot be read.
std::vector<ChunkRange> Repair::grant_reads(Operation& op, uint32_t stream, Member asker,
                                            uint32_t id, const std::vector<ChunkRange>& ranges) {
  if (ranges.empty() || op.plan.small || g_.port.max_read() < op.plan.chunk) return ranges;
  const Slice& block = op.own.stream == stream ? op.post.input : op.post.outputs[stream];
  const size_t chunk = op.plan.chunk;
  std::vector<ChunkRange> granted, rest;
  std::optional<RemoteGrant> grant;
  const auto send = [&] {
    if (granted.empty()) return;
    wire::Writer body;
    wire::put_fetch_grant(
        body, {op.member_of(stream), grant->address, grant->key, std::exchange(granted, {})});
    g_.counters.add(Counter::fetch_grants_sent);
    g_.send_frame(asker, Channel::kControl, wire::FrameType::kFetchGrant, op.post.sequence, id,
                  body.bytes());
  };
  // Whole chunks from `at` on that the current grant covers.
  const auto covered = [&](Chunk at, Chunk end) {
    if (!grant || at * chunk < grant->first) return at;
    const size_t last = grant->end >= op.plan.block ? op.plan.chunks : grant->end / chunk;
    return std::max(at, static_cast<Chunk>(std::min<size_t>(end, last)));
  };
  for (const ChunkRange& r : ranges) {
    Chunk at = r.first;
    while (at < r.end) {
      if (covered(at, r.end) == at) {
        send();
        grant = g_.port.expose(block, at * chunk);
        if (covered(at, r.end) == at) break;
        if (op.grants.empty() || op.grants.back() != grant->hold) op.grants.push_back(grant->hold);
      }
      const Chunk end = covered(at, r.end);
      granted.push_back({at, end});
      at = end;
    }
    if (at < r.end) rest.push_back({at, r.end});
  }
  send();
  return rest;
}

bool Repair::reading(const Operation& op) const {
  return std::any_of(reads_running_.begin(), reads_running_.end(), [&op](const auto& entry) {
    return entry.second.sequence == op.post.sequence;
  });
}

void Repair::on_fetch_grant(const Frame& header, ConstBytes body, Nanos now) {
  wire::FetchGrant grant;
  if (!wire::parse_fetch_grant(body, grant)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  Operation* op = g_.find(header.sequence);
  if (op == nullptr || op->local_complete || !op->fetch) {
    g_.counters.add(Counter::stale);
    return;
  }
  const auto stream = op->stream_of(grant.root);
  const bool in_bounds =
      stream && stream != op->own.stream &&
      std::all_of(grant.ranges.begin(), grant.ranges.end(),
                  [op](const ChunkRange& r) { return r.end <= op->plan.chunks; });
  if (!in_bounds || g_.port.max_read() < op->plan.chunk) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (!op->fetch->on_grant(header.argument, header.member, grant.root, now)) {
    g_.counters.add(Counter::stale);
    return;
  }
  heard_[header.member] = now;
  g_.ops.touch(*op);
  const auto most = static_cast<Chunk>(g_.port.max_read() / op->plan.chunk);
  for (const ChunkRange& r : grant.ranges) {
    for (Chunk at = r.first; at < r.end; at += std::min(most, r.end - at)) {
      reads_waiting_.push_back({header.sequence,
                                header.argument,
                                header.member,
                                grant.root,
                                {at, std::min(r.end, at + most)},
                                grant.address + static_cast<uint64_t>(at) * op->plan.chunk,
                                grant.key});
    }
  }
  drive_reads();
}

void Repair::drive_reads() {
  while (!reads_waiting_.empty()) {
    const Read& r = reads_waiting_.front();
    const Operation* op = g_.find(r.sequence);
    if (op != nullptr && op->receiving > 0 && g_.gone[r.donor].ok()) {
      if (!g_.port.read(r.donor, r.address, r.key, op->plan.length(r.range), next_read_)) return;
      g_.counters.add(Counter::repair_reads);
      reads_running_[next_read_++] = r;
    }
    reads_waiting_.pop_front();
  }
}

void Repair::on_read(uint32_t token, ConstBytes bytes, Nanos now) {
  const auto it = reads_running_.find(token);
  if (it == reads_running_.end()) return;
  const Read r = it->second;
  reads_running_.erase(it);
  Operation* op = g_.find(r.sequence);
  if (g_.failed() || op == nullptr || op->local_complete ||
      bytes.size() != op->plan.length(r.range)) {
    g_.counters.add(Counter::stale);
    return;
  }
  g_.counters.add(Counter::repair_read_bytes, bytes.size());
  if (!accept(*op, *op->stream_of(r.root), r.donor, r.id, r.range, bytes, now)) {
    g_.counters.add(Counter::stale);
  }
  // The operation may have waited for this read only.
  if (Operation* const waiting = g_.find(r.sequence)) g_.may_be_complete(*waiting);
  drive_reads();
}

}  // namespace mcast
