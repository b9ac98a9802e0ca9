// Dispatches from the plan's algorithm to its functions, with direct calls that the compiler can
// inline: a round of a small operation takes about as long as the calls themselves. Also contains
// the code shared by all reductions.
#include <cstring>

#include "base/streaming_copy.h"
#include "shm/algorithms/algorithms.h"

namespace mcast {
namespace {

bool readable(const Slice& slice, size_t bytes) {
  return !slice.region || slice.region->readable() >= slice.offset + std::min(bytes, slice.length);
}

bool readable(const std::vector<Slice>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const Slice& input) { return readable(input, input.length); });
}

// The inputs may still be under way from a device.
bool inputs_are_there(const HostOperation& op) {
  if (op.post.exchange) return readable(op.post.exchange->inputs);
  if (!op.post.reduce) {
    return readable(op.post.input, (op.published + size_t{1}) * op.plan.slice);
  }
  return readable(op.post.reduce->inputs);
}

void write_header(SlotHeader& header, const HostOperation& op, uint32_t index) {
  const wire::Descriptor& d = op.post.descriptor;
  header.kind = static_cast<uint8_t>(d.kind);
  header.element = d.element;
  header.reduction = d.reduction;
  header.root = d.root;
  header.index_low = static_cast<uint16_t>(index);
  header.sequence = op.post.sequence;
  header.bytes = d.bytes;
  header.address = 0;
  header.factor = op.post.reduce ? op.post.reduce->factor : 1;
  const size_t name = std::min(d.name.size(), kHostName - 1);
  std::memcpy(header.name, d.name.data(), name);
  header.name[name] = 0;
}

}  // namespace

bool ready_to_fill(const HostOperation& op, bool oldest) {
  switch (op.plan.algorithm) {
    case HostAlgorithm::kBarrier:  // means that everything before it is complete here
      return oldest;
    case HostAlgorithm::kDirectAllReduce:
    case HostAlgorithm::kPulledAllReduce:
      if (op.published > 0 && op.consumed == 0) return false;  // the addresses are not known yet
      break;
    case HostAlgorithm::kSlotExchange:
      if (op.published > 0 && op.plan.rounds == HostPlan::kUnknown) return false;
      break;
    case HostAlgorithm::kSlotAllReduce:
      if (!slot_all_reduce_is_folded(op)) return false;
      break;
    default:
      break;
  }
  return inputs_are_there(op);
}

bool fill_is_large(const HostOperation& op) {
  return (op.plan.algorithm == HostAlgorithm::kDirectAllReduce ||
          op.plan.algorithm == HostAlgorithm::kPulledAllReduce) &&
         op.published > 0;
}

bool fill_round(HostTools& tools, HostOperation& op, uint32_t index) {
  write_header(tools.lane.header(tools.lane.self(), op.first + index), op, index);
  switch (op.plan.algorithm) {
    case HostAlgorithm::kBarrier:
      return true;
    case HostAlgorithm::kBlocks:
      fill_blocks(tools, op, index);
      return true;
    case HostAlgorithm::kPulledBlocks:
      fill_pulled_blocks(tools, op, index);
      return true;
    case HostAlgorithm::kSlotReduce:
      fill_slot_reduce(tools, op, index);
      return true;
    case HostAlgorithm::kDirectReduce:
      fill_direct_reduce(tools, op, index);
      return true;
    case HostAlgorithm::kSlotAllReduce:
      fill_slot_all_reduce(tools, op, index);
      return true;
    case HostAlgorithm::kDirectAllReduce:
      return fill_direct_all_reduce(tools, op, index);
    case HostAlgorithm::kPulledAllReduce:
      return fill_pulled_all_reduce(tools, op, index);
    case HostAlgorithm::kExchange:
      fill_exchange(tools, op);
      return true;
    case HostAlgorithm::kSlotExchange:
      fill_slot_exchange(tools, op, index);
      return true;
  }
  return true;
}

Taken take_round(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  switch (op.plan.algorithm) {
    case HostAlgorithm::kBarrier:
      break;
    case HostAlgorithm::kBlocks:
      return take_blocks(tools, op, index, large);
    case HostAlgorithm::kPulledBlocks:
      return take_pulled_blocks(tools, op, index, large);
    case HostAlgorithm::kSlotReduce:
      return take_slot_reduce(tools, op, index, large);
    case HostAlgorithm::kDirectReduce:
      return take_direct_reduce(tools, op, large);
    case HostAlgorithm::kSlotAllReduce:
      return take_slot_all_reduce(tools, op, index, large);
    case HostAlgorithm::kDirectAllReduce:
      return take_direct_all_reduce(tools, op, index, large);
    case HostAlgorithm::kPulledAllReduce:
      return take_pulled_all_reduce(tools, op, index, large);
    case HostAlgorithm::kExchange:
      return take_exchange(tools, op, large);
    case HostAlgorithm::kSlotExchange:
      return take_slot_exchange(tools, op, index, large);
  }
  return take_barrier(op);
}

void copy_to_slot(HostTools& tools, uint64_t round, const Slice& from, size_t offset, size_t length,
                  size_t at) {
  length = clip(offset, length, from.length);
  if (length == 0) return;
  std::memcpy(tools.lane.data(tools.lane.self(), round) + at, from.data() + offset, length);
  tools.counters.add(Counter::shm_slot_bytes, length);
}

void put_own_piece(HostOperation& op, Member self, size_t offset, const std::byte* from) {
  const Slice& own = op.post.outputs[self];
  if (own.data() == op.post.input.data()) return;
  copy_result(own.data() + offset, from, clip(offset, op.plan.slice, own.length), op.plan.whole);
  streaming_fence();  // another thread may drive the next round
}

Taken reduction_state(const HostOperation& op, bool large) {
  if (!op.all_agree()) return Taken::kWaits;
  return op.plan.large && !large ? Taken::kLarge : Taken::kAll;
}

void gather_parts(HostTools& tools, HostOperation& op, uint32_t span, uint32_t index) {
  std::byte* const output = op.post.reduce->output.data();
  const size_t slice = op.plan.slice;
  const size_t base = span * slice * tools.lane.size();
  for (size_t m = 0; m < tools.lane.size(); m++) {
    const size_t at = base + m * slice, length = clip(at, slice, op.post.descriptor.bytes);
    copy_result(output + at, tools.lane.data(static_cast<Member>(m), op.first + index), length,
                op.plan.whole);
  }
  streaming_fence();
}

}  // namespace mcast
