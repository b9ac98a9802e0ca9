// Frames of reductions. A frame that a correct rank cannot have sent fails the group: dropped
// silently, it would cause a wrong sum or a hang.
#include <cstring>

#include "collective/movements/reductions.h"
#include "wire/aggregation.h"

namespace mcast {

bool Reductions::allowed_early(const Frame& header) {
  if (header.type == wire::FrameType::kReduceTaken) {
    g_.broke(header, "an input was taken that was not offered");
  } else if (header.type == wire::FrameType::kReduceResult) {
    g_.broke(header, "a result without this rank's input");
  } else {
    return true;
  }
  return false;
}

void Reductions::on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now) {
  g_.ops.touch(op);
  if (!op.reduce)
    return g_.broke(header, "a reduction frame for an operation that is not a reduction");
  if (!op.reduce->owner || (op.local_complete && !op.reduce->dealt)) {
    g_.counters.add(Counter::stale);
    return;
  }
  op.last_byte = now;
  op.first_byte = std::min(op.first_byte, now);
  switch (header.type) {
    case wire::FrameType::kReduceOffer:
      return on_offer(op, header, body);
    case wire::FrameType::kReduceTaken:
      return on_taken(op, header, body);
    case wire::FrameType::kReduceGrant:
      return on_grant(op, header, body);
    case wire::FrameType::kReduceData:
      return on_data(op, header, body);
    case wire::FrameType::kDivert:
      return on_divert(op, header, body);
    default:
      return on_result(op, header, body);
  }
}

void Reductions::on_taken(Operation& op, const Frame& header, ConstBytes body) {
  std::optional<HostInputs>& host = op.reduce->host;
  if (!host || !op.reduce->inputs.offered || !body.empty() || !host->on_taken(header.member)) {
    return g_.broke(header, "an input was taken by a rank to which it was not offered");
  }
  g_.may_be_complete(op);
}

void Reductions::on_offer(Operation& op, const Frame& header, ConstBytes body) {
  std::optional<HostInputs>& host = op.reduce->host;
  wire::ReduceOffer offer;
  if (!host || !wire::parse_reduce_offer(body, offer) || !host->on_offer(header.member, offer)) {
    g_.broke(header, "an input was offered that this rank does not need");
  }
}

void Reductions::on_grant(Operation& op, const Frame& header, ConstBytes body) {
  wire::Reader in(body);
  const auto end = in.get<uint32_t>();
  if (in.done() && op.reduce->excused()) return;
  if (!in.done() || !op.reduce->sender->on_grant(header.member, end)) {
    g_.broke(header, "a grant beyond the block");
  }
}

// The sender's list continues with segments that a station was to fold.
void Reductions::on_divert(Operation& op, const Frame& header, ConstBytes body) {
  ReduceRun& run = *op.reduce;
  wire::Divert divert;
  if (!run.dealt || !wire::parse_divert(body, divert)) {
    return g_.broke(header, "it took over segments that are not assigned to any aggregator");
  }
  if (run.excused()) return;
  const Deal& deal = run.dealt->deal;
  const std::vector<Member>& stations = run.dealt->members;
  for (const ChunkRange range : divert.segments) {
    for (uint32_t i = range.first; i < range.end; i++) {
      const uint16_t station =
          i < deal.segments(header.member) ? deal.executor(header.member, i) : Deal::kOwner;
      if (station == Deal::kOwner || stations[station] != divert.station) {
        return g_.broke(header, "it took over segments that are not assigned to that aggregator");
      }
      run.sender->append(header.member, i);
    }
  }
}

void Reductions::on_data(Operation& op, const Frame& header, ConstBytes body) {
  wire::ReduceData data;
  const auto from = op.reduce->contributor(header.member);
  if (!from || !wire::parse_reduce_data(body, data) ||
      !op.reduce->owner->accept(*from, data.segment, data.factor, data.payload)) {
    return g_.broke(header, "a contribution that was not asked for");
  }
  g_.counters.add(Counter::reduce_bytes_received, data.payload.size());
  if (op.reduce->owner->complete()) contribution_progress(op);
}

void Reductions::on_result(Operation& op, const Frame& header, ConstBytes body) {
  wire::Reader in(body);
  const auto offset = in.get<uint64_t>();
  ReduceRun& run = *op.reduce;
  if (!in.ok() || op.plan.reduce.way != ReduceWay::kToRoot || op.plan.descriptor.root != g_.self ||
      offset != run.to_root.collected[header.member] ||
      in.remaining() > run.length(header.member) - offset) {
    return g_.broke(header, "a result out of place");
  }
  const ConstBytes payload = in.rest();
  std::memcpy(run.destination(header.member).data() + offset, payload.data(), payload.size());
  run.to_root.collected[header.member] += payload.size();
  g_.counters.add(Counter::reduce_bytes_received, payload.size());
  g_.may_be_complete(op);
}

}  // namespace mcast
