// The requesting side of repair. Lost chunks are requested from the ring neighbour, then from the
// root. Donors reply with bytes, with permission to read them, or with a refusal, and then another
// donor is asked.
#include "collective/movements/repair.h"

#include <algorithm>

namespace mcast {

void Repair::detect_losses(Operation& op, Nanos now, bool drained) {
  op.flow.active.visit([&](uint32_t stream) {
    BlockReceiver& receiver = op.receivers[stream];
    if (receiver.complete()) return op.flow.credit.has_value();  // which reports its end
    ranges_.clear();
    bool cutoff = false;
    receiver.detect(now, drained, ranges_, cutoff);
    if (cutoff) g_.counters.add(Counter::cutoffs);
    for (const ChunkRange& r : ranges_) {
      g_.counters.add(Counter::gaps, r.size());
      op.fetch->want(op.member_of(stream), r);
    }
    return true;
  });
}

void Repair::start(Operation& op) {
  const Plan& plan = op.plan;
  FetchParams fetch;
  fetch.self = g_.self;
  fetch.members = g_.size;
  fetch.ask_root_only = plan.small;
  fetch.max_chunks = static_cast<Chunk>(std::max<size_t>(1, kMostAsked / plan.chunk));
  fetch.coming_wait = 2 * g_.params.alpha;
  op.fetch.emplace(fetch);
  if (op.own.stream) start_server(op);
}

void Repair::drive(Operation& op, Nanos now, bool drained) {
  detect_losses(op, now, drained);
  drive_reads();
  if (op.fetch->idle()) return;
  if (const size_t expired = op.fetch->expire(now, heard_)) {
    g_.counters.add(Counter::fetch_timeouts, expired);
  }
  const auto has = [&op](Member root, Chunk c) { return op.receivers[*op.stream_of(root)].has(c); };
  FetchClient::Request request;
  while (op.fetch->next(now, has, request)) {
    wire::Writer body;
    wire::put_fetch(body, op.plan.hash, request.root, request.ranges);
    g_.counters.add(Counter::fetches_sent);
    g_.send_frame(request.donor, Channel::kControl, wire::FrameType::kFetch, op.post.sequence,
                  request.id, body.bytes());
  }
}

void Repair::on_fetch_data(const Frame& header, ConstBytes body, Nanos now) {
  Operation* op = g_.find(header.sequence);
  wire::FetchData data;
  if (!wire::parse_fetch_data(body, data)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (op == nullptr || op->local_complete || !op->fetch) {
    g_.counters.add(Counter::stale);
    return;
  }
  const auto stream = op->stream_of(data.root);
  if (!stream || data.range.end > op->plan.chunks ||
      data.payload.size() != op->plan.length(data.range)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  // A late reply belongs to a request that was given up; an invalid one settles nothing.
  if (!accept(*op, *stream, header.member, header.argument, data.range, data.payload, now)) {
    g_.counters.add(Counter::stale);
  }
}

bool Repair::accept(Operation& op, uint32_t stream, Member donor, uint32_t id, ChunkRange range,
                    ConstBytes payload, Nanos now) {
  bytes_[donor].first += payload.size();
  heard_[donor] = now;
  g_.ops.touch(op);
  size_t offset = 0;
  for (Chunk c = range.first; c < range.end; c++) {
    const size_t length = op.plan.length(c);
    if (reception_.place(op, stream, c, payload.subspan(offset, length), false, now)) {
      g_.counters.add(Counter::repair_chunks_received);
    }
    offset += length;
  }
  return op.fetch->on_data(id, donor, op.member_of(stream), range, now);
}

void Repair::on_not_have(const Frame& header, ConstBytes body, Nanos now) {
  const bool coming = header.type == wire::FrameType::kComing;
  if (!coming) g_.counters.add(Counter::not_have_received);
  Operation* op = g_.find(header.sequence);
  Member root;
  if (!wire::parse_ranges(body, root, ranges_)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (op == nullptr || op->local_complete || !op->fetch) {
    g_.counters.add(Counter::stale);
    return;
  }
  const std::vector<ChunkRange> ranges = ranges_;
  for (const ChunkRange& r : ranges) {
    if (!op->stream_of(root) || r.end > op->plan.chunks) {
      g_.counters.add(Counter::malformed);
      return;
    }
  }
  heard_[header.member] = now;
  g_.ops.touch(*op);
  if (!op->fetch->on_not_have(header.argument, header.member, root, ranges, coming, now)) {
    g_.counters.add(Counter::stale);
  }
}

}  // namespace mcast
