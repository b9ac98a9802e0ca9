// reduce and reduce_scatter of more than a slot, if all ranks can read each other's memory: one
// round, in which slots carry only addresses.
//
// 1. Every rank publishes the address of its input (reduce_scatter: for each owner).
// 2. A rank with a result reads its part of every input and folds it, tile by tile, in order.
// 3. The operation is complete at a rank when all have done step 2: until then its input is lent.
//
// Cost per rank: reduce: the root reads (P - 1) n and folds P n. reduce_scatter (n: a block): reads
// (P - 1) n and folds P n. No data is copied into slots. Mapped inputs are not read but folded in
// place.
#include <cstring>

#include "shm/algorithms/algorithms.h"

namespace mcast {

HostPlan plan_direct_reduce() {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kDirectReduce;
  plan.large = true;
  return plan;
}

void fill_direct_reduce(HostTools& tools, HostOperation& op, uint32_t index) {
  const std::vector<Slice>& inputs = op.post.reduce->inputs;
  const Member self = tools.lane.self();
  const uint64_t round = op.first + index;
  if (op.post.descriptor.kind == wire::Kind::kReduce) {
    tools.lane.header(self, round).address = tools.port.place_of(inputs[0]);
    return;
  }
  std::byte* const addresses = tools.lane.data(self, round);
  for (size_t m = 0; m < inputs.size(); m++) {
    const uint64_t address = tools.port.place_of(inputs[m]);
    std::memcpy(addresses + m * sizeof address, &address, sizeof address);
  }
}

Taken take_direct_reduce(HostTools& tools, HostOperation& op, bool large) {
  const wire::Descriptor& d = op.post.descriptor;
  if (d.kind == wire::Kind::kReduce && d.root != tools.lane.self()) return Taken::kAll;
  if (const Taken state = reduction_state(op, large); state != Taken::kAll) return state;
  tools.folder.learn_sources(op);
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  if (!tools.folder.fold_direct(op, 0, d.bytes, op.post.reduce->output.data())) {
    return Taken::kFailed;
  }
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

}  // namespace mcast
