// all_reduce of more than one step (slot_reduce.cpp), if tensors are mapped: a round for places,
// then one for each span of P parts of up to 128 KiB.
//
// 1. Every rank publishes the place of its input.
// 2. Every rank folds its own part of the span out of all inputs into its own result, publishes the
//   place of that, and copies the other parts from the others' results. A part of an input that is
//   also its rank's result is overwritten only when the part's owner has folded it.
// 3. The operation is complete at a rank when all have done step 2: until then its result is lent.
//
// Cost per rank, for n bytes: (P - 1) n / P mapped and n folded, (P - 1) n / P copied from mapped
// memory. No data goes through slots.
#include "base/streaming_copy.h"
#include "shm/algorithms/algorithms.h"

namespace mcast {

HostPlan plan_pulled_all_reduce(size_t bytes, uint32_t members) {
  HostPlan plan = plan_direct_all_reduce(bytes, members);
  plan.algorithm = HostAlgorithm::kPulledAllReduce;
  return plan;
}

bool fill_pulled_all_reduce(HostTools& tools, HostOperation& op, uint32_t index) {
  const Member self = tools.lane.self();
  SlotHeader& header = tools.lane.header(self, op.first + index);
  if (index == 0) {
    header.address = tools.port.place_of(op.post.reduce->inputs[0]);
    return true;
  }
  const Slice& output = op.post.reduce->output;
  const size_t slice = op.plan.slice;
  const size_t at = (index - 1) * slice * tools.lane.size() + self * slice;
  header.address = tools.port.place_of(output) + at;
  return tools.folder.fold_direct(op, at, clip(at, slice, op.post.descriptor.bytes),
                                  output.data() + at);
}

Taken take_pulled_all_reduce(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  if (const Taken state = reduction_state(op, large); state != Taken::kAll) return state;
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  if (index == 0) tools.folder.learn_sources(op);
  const size_t slice = op.plan.slice, members = tools.lane.size();
  for (size_t i = 1; index > 0 && i < members; i++) {
    const auto m = static_cast<Member>((tools.lane.self() + i) % members);
    const size_t at = ((index - 1) * members + m) * slice;
    const size_t length = clip(at, slice, op.post.descriptor.bytes);
    const uint64_t place = tools.lane.header(m, op.first + index).address;
    if (!tools.folder.pull(m, place, op.post.reduce->output.data() + at, length, op.plan.whole)) {
      return Taken::kFailed;
    }
  }
  streaming_fence();
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

}  // namespace mcast
