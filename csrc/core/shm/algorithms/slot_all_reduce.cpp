// all_reduce of more than one step (slot_reduce.cpp), if memory cannot be read: two rounds for each
// span of P parts, a slot's 128 KiB in all.
//
// 1. Every rank copies its input of the span into its slot; each folds its part of all slots.
// 2. Every rank copies its folded part into its slot, and copies all parts out into its result.
//
// Cost per rank, of n bytes: n + n / P copied into slots and n out of them, n folded.
#include <cstring>

#include "shm/algorithms/algorithms.h"

namespace mcast {
namespace {

// The step of a round for its span: parts are folded, or the folded parts are gathered.
struct SpanStep {
  bool gathers;
  uint32_t span;
};
SpanStep span_step(uint32_t index) { return {index % 2 == 1, index / 2}; }

}  // namespace

HostPlan plan_slot_all_reduce(size_t bytes, uint32_t members) {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kSlotAllReduce;
  plan.slice = slot_part(members);
  plan.rounds = 2 * rounds_of((bytes + members - 1) / members, plan.slice);
  plan.large = true;
  plan.whole = bytes;
  return plan;
}

// A gathering round publishes the result of the folding round before it.
bool slot_all_reduce_is_folded(const HostOperation& op) {
  const SpanStep step = span_step(op.published);
  return !step.gathers || step.span < op.folded;
}

void fill_slot_all_reduce(HostTools& tools, HostOperation& op, uint32_t index) {
  const uint64_t round = op.first + index;
  const auto [gathers, span] = span_step(index);
  if (!gathers) {
    const size_t bytes = op.plan.slice * tools.lane.size();
    copy_to_slot(tools, round, op.post.reduce->inputs[0], span * bytes, bytes, 0);
  } else if (!op.part.empty()) {
    std::memcpy(tools.lane.data(tools.lane.self(), round), op.part.data(), op.part.size());
    tools.counters.add(Counter::shm_slot_bytes, op.part.size());
  }
}

Taken take_slot_all_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  if (const Taken state = reduction_state(op, large); state != Taken::kAll) return state;
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  const auto [gathers, span] = span_step(index);
  if (gathers) {
    gather_parts(tools, op, span, index);
  } else {
    const size_t slice = op.plan.slice, own = tools.lane.self() * slice;
    const size_t at = span * slice * tools.lane.size() + own;
    const size_t length = clip(at, slice, op.post.descriptor.bytes);
    op.part.resize(length);
    if (length > 0) {
      tools.folder.fold_slots(op, op.first + index, own, at, length, op.part.data());
    }
    op.folded++;
  }
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

}  // namespace mcast
