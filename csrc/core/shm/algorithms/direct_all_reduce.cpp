// all_reduce of more than one step (slot_reduce.cpp), if all ranks can read each other's memory: a
// round for addresses, then one for each span of P parts of up to 128 KiB.
//
// 1. Every rank publishes the address of its input.
// 2. Every rank reads its own part of the span from all others, folds it into its slot, and
//   copies all parts of it out of the slots into its result.
//
// Cost per rank, of n bytes: (P - 1) n / P read, n folded (n / P bytes of it into slots), n copied
// out of slots.
#include "shm/algorithms/algorithms.h"

namespace mcast {
namespace {

constexpr size_t kLine = 64;  // parts are whole cache lines

}  // namespace

HostPlan plan_direct_all_reduce(size_t bytes, uint32_t members) {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kDirectAllReduce;
  const size_t each = (bytes + members - 1) / members;
  plan.slice = std::min(kHostSlot, (each + kLine - 1) / kLine * kLine);
  plan.rounds = 1 + rounds_of(each, plan.slice);
  plan.large = true;
  plan.whole = bytes;
  return plan;
}

bool fill_direct_all_reduce(HostTools& tools, HostOperation& op, uint32_t index) {
  const Member self = tools.lane.self();
  const uint64_t round = op.first + index;
  if (index == 0) {
    tools.lane.header(self, round).address = tools.port.place_of(op.post.reduce->inputs[0]);
    return true;
  }
  const size_t slice = op.plan.slice;
  const size_t at = (index - 1) * slice * tools.lane.size() + self * slice;
  const size_t length = clip(at, slice, op.post.descriptor.bytes);
  if (!tools.folder.fold_direct(op, at, length, tools.lane.data(self, round))) return false;
  tools.counters.add(Counter::shm_slot_bytes, length);
  return true;
}

Taken take_direct_all_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  if (const Taken state = reduction_state(op, large); state != Taken::kAll) return state;
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  if (index == 0) {
    tools.folder.learn_sources(op);
  } else {
    gather_parts(tools, op, index - 1, index);
  }
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

}  // namespace mcast
