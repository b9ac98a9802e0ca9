// Reductions through slots: small ones, and reduce and reduce_scatter of any size if memory cannot
// be read.
//
// 1. Every rank copies its input into its slot: for reduce and all_reduce 128 KiB a round, for
//   reduce_scatter a part for each owner (128 KiB / P, whole cache lines).
// 2. A rank with a result folds it out of all slots, in the group's order: the root of a reduce;
// each
//   owner its part in a reduce_scatter; every rank everything in an all_reduce (one step, up to
//   256 KiB in all slots).
//
// Cost per rank: reduce: n copied, P n folded at the root. reduce_scatter (n: a block): P n copied,
// P n folded. all_reduce: n copied, P n folded.
#include "shm/algorithms/algorithms.h"

namespace mcast {

HostPlan plan_slot_reduce(size_t bytes, size_t slice) {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kSlotReduce;
  plan.slice = slice;
  plan.rounds = rounds_of(bytes, slice);
  plan.large = plan.rounds > 1;
  return plan;
}

void fill_slot_reduce(HostTools& tools, HostOperation& op, uint32_t index) {
  const std::vector<Slice>& inputs = op.post.reduce->inputs;
  const size_t slice = op.plan.slice;
  for (size_t i = 0; i < inputs.size(); i++) {
    copy_to_slot(tools, op.first + index, inputs[i], index * slice, slice, i * slice);
  }
}

Taken take_slot_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  const wire::Descriptor& d = op.post.descriptor;
  if (d.kind == wire::Kind::kReduce && d.root != tools.lane.self()) return Taken::kAll;
  if (const Taken state = reduction_state(op, large); state != Taken::kAll) return state;
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  const size_t slice = op.plan.slice, offset = index * slice;
  const size_t at = d.kind == wire::Kind::kReduceScatter ? tools.lane.self() * slice : 0;
  const size_t length = clip(offset, slice, d.bytes);
  if (length > 0) {
    tools.folder.fold_slots(op, op.first + index, at, offset, length,
                            op.post.reduce->output.data() + offset);
  }
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

}  // namespace mcast
