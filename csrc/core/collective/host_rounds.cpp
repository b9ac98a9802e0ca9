// The data of a round. In slots: what the others need is copied into this rank's slot, and taken
// from theirs. That is two copies where a direct read of the peer's memory would be one, and still
// less work: a slot is in the cache, a source is read once for all takers, and large results are
// written past the caches, which the kernel's copy does not do. Direct, for reductions, where each
// byte has one taker: the slot names addresses, and the takers read them. A reduction folds the
// contributions of all ranks in rank order, tile by tile, so that a tile and its accumulator stay
// in the cache; 16-bit floats accumulate in float32 (base/reduce_kernels.h).
//
// all_reduce: in one step everybody folds everything; otherwise segment by segment. Direct: each
// rank folds its part of the segment into its slot, from which all take it. In slots: in one round
// each rank folds its part, in another it publishes the result for all to gather.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/reduce_kernels.h"
#include "base/streaming_copy.h"
#include "collective/host_core.h"

namespace mcast {
namespace {

constexpr size_t kTile = 128u << 10;  // bytes of a contribution that are folded at once

template <typename Op>
bool all_agree(const Op& op) {
  return std::all_of(op.agreed.begin(), op.agreed.end(), [](bool yes) { return yes; });
}

size_t clip(size_t from, size_t length, size_t end) {
  return from >= end ? 0 : std::min(length, end - from);
}

}  // namespace

// Whether publishing the next round reads the others' memory.
bool HostCore::folds_to_publish(const Op& op) const {
  return op.plan.direct && op.post.descriptor.kind == wire::Kind::kAllreduce && op.published > 0;
}

// False: a peer's memory could not be read.
bool HostCore::fill(Op& op, uint32_t index) {
  const wire::Descriptor& d = op.post.descriptor;
  const uint64_t round = op.first + index;
  HostRound& r = board_.round(params_.lane, params_.self, round);
  std::byte* const data = board_.data(params_.lane, params_.self, round);
  r.kind = static_cast<uint8_t>(d.kind);
  r.element = d.element;
  r.reduction = d.reduction;
  r.root = d.root;
  r.index_low = static_cast<uint16_t>(index);
  r.sequence = op.post.sequence;
  r.bytes = d.bytes;
  r.address = 0;
  r.factor = op.post.reduce ? op.post.reduce->factor : 1;
  const size_t name = std::min(d.name.size(), kHostName - 1);
  std::memcpy(r.name, d.name.data(), name);
  r.name[name] = 0;

  const auto address = [](const Slice& s) { return reinterpret_cast<uint64_t>(s.data()); };
  size_t copied = 0;
  const auto copy = [&](const Slice& from, size_t offset, size_t length, size_t at) {
    length = clip(offset, length, from.length);
    if (length > 0) std::memcpy(data + at, from.data() + offset, length);
    copied += length;
  };
  const size_t slice = op.plan.slice;
  const std::optional<ReduceArgs>& reduce = op.post.reduce;
  using wire::Kind;
  switch (d.kind) {
    case Kind::kBarrier:
      break;
    case Kind::kBroadcast:
      if (d.root == params_.self) copy(op.post.input, index * slice, slice, 0);
      break;
    case Kind::kAllgather: {
      copy(op.post.input, index * slice, slice, 0);
      // The own block, while the source is in the cache.
      const Slice& own = op.post.outputs[params_.self];
      if (own.data() != op.post.input.data()) {
        copy_result(own.data() + index * slice, data, clip(index * slice, slice, own.length),
                    op.plan.whole);
        streaming_fence();  // another thread may drive the next round
      }
      break;
    }
    case Kind::kReduce:
      r.address = address(reduce->inputs[0]);
      if (!op.plan.direct) copy(reduce->inputs[0], index * slice, slice, 0);
      break;
    case Kind::kReduceScatter:
      for (size_t m = 0; m < params_.size; m++) {
        if (op.plan.direct) {
          const uint64_t at = address(reduce->inputs[m]);
          std::memcpy(data + m * sizeof at, &at, sizeof at);
        } else {
          copy(reduce->inputs[m], index * slice, slice, m * slice);
        }
      }
      break;
    case Kind::kAllreduce:
      if (op.plan.one_step) {
        copy(reduce->inputs[0], 0, d.bytes, 0);
      } else {
        const size_t span = slice * params_.size;
        if (op.plan.direct) {
          r.address = address(reduce->inputs[0]);
          if (index == 0) break;
          const size_t at = (index - 1) * span + params_.self * slice;
          const size_t length = clip(at, slice, d.bytes);
          if (!fold_direct(op, at, length, data)) return false;
          copied += length;
          break;
        }
        const auto [gathers, segment] = op.plan.step(index);
        if (gathers) {
          if (!op.part.empty()) std::memcpy(data, op.part.data(), op.part.size());
          copied += op.part.size();
        } else {
          copy(reduce->inputs[0], segment * span, span, 0);
        }
      }
      break;
  }
  counters_.add(Counter::shm_slot_bytes, copied);
  return true;
}

HostCore::Took HostCore::take(Op& op, uint32_t index, bool large) {
  using wire::Kind;
  const wire::Descriptor& d = op.post.descriptor;
  if (d.kind == Kind::kBarrier) return all_agree(op) ? Took::kAll : Took::kWaits;
  const bool rooted = d.kind == Kind::kBroadcast || d.kind == Kind::kReduce;
  if (rooted && (d.root == params_.self) == (d.kind == Kind::kBroadcast)) return Took::kAll;
  const bool moves = d.kind == Kind::kBroadcast || d.kind == Kind::kAllgather;
  if (op.plan.large && !large) {
    const bool there =
        moves ? std::count(op.agreed.begin(), op.agreed.end(), true) > 1 : all_agree(op);
    return there ? Took::kLarge : Took::kWaits;
  }
  return moves ? take_blocks(op, index) : take_reduction(op, index);
}

HostCore::Took HostCore::take_blocks(Op& op, uint32_t index) {
  const bool one = op.post.descriptor.kind == wire::Kind::kBroadcast;
  const uint64_t round = op.first + index;
  const size_t offset = index * op.plan.slice;
  bool all = true;
  for (uint32_t s = 0; s < op.post.outputs.size(); s++) {
    const Member m = one ? op.post.descriptor.root : static_cast<Member>(s);
    if (op.taken[m]) continue;
    if (!op.agreed[m]) {
      all = false;
      continue;
    }
    const Slice& out = op.post.outputs[s];
    const size_t length = clip(offset, op.plan.slice, out.length);
    if (op.first_byte == kNever) op.first_byte = port_.now();
    copy_result(out.data() + offset, data_of(m, round), length, op.plan.whole);
    streaming_fence();
    op.taken[m] = true;
    if (op.post.on_completed && length > 0)
      op.post.raise_completed(s, offset, offset + length, out.length);
  }
  if (all) op.last_byte = port_.now();
  return all ? Took::kAll : Took::kWaits;
}

bool HostCore::fetch(Member from, uint64_t address, std::byte* to, size_t length) {
  const Status status = port_.read(from, address, to, length);
  if (status.ok()) {
    counters_.add(Counter::shm_direct_bytes, length);
    return true;
  }
  // A rank that failed, told why and ended is not the one to blame.
  if (noticed()) return false;
  fail(Status(Code::kPeerLost, "rank " + std::to_string(from) + " is lost (" + status.message() +
                                   "); look at its log for the first error"),
       from);
  return false;
}

// Folds `length` bytes at `offset` of what every slot of `round` holds.
void HostCore::fold_slots(Op& op, uint64_t round, size_t offset, size_t length, std::byte* out) {
  const ReduceArgs& how = *op.post.reduce;
  const size_t element = element_size(how.element), wide = accumulator_size(how.element);
  accumulator_.resize(std::max(accumulator_.size(), kTile / element * wide));
  for (size_t at = 0; at < length; at += kTile) {
    const size_t count = std::min(kTile, length - at) / element;
    for (uint32_t i = 0; i < params_.size; i++) {
      const auto m = static_cast<Member>(i);
      const std::byte* const source = data_of(m, round) + offset + at;
      const double factor = round_of(m, round).factor;
      (i == 0 ? fold_first : fold_next)(how.element, how.reduction, factor, source,
                                        accumulator_.data(), count);
    }
    fold_finish(how.element, how.reduction, params_.size, accumulator_.data(), out + at, count);
  }
}

// Where everybody's input is (reduce_scatter: what it has for this rank), from the first round.
void HostCore::learn_sources(Op& op) {
  for (uint32_t i = 0; i < params_.size; i++) {
    const auto m = static_cast<Member>(i);
    const HostRound& r = round_of(m, op.first);
    uint64_t address = r.address;
    if (op.post.descriptor.kind == wire::Kind::kReduceScatter) {
      std::memcpy(&address, data_of(m, op.first) + params_.self * sizeof address, sizeof address);
    }
    op.sources.push_back({address, r.factor});
  }
}

// Folds the part at `offset` of everybody's input.
bool HostCore::fold_direct(Op& op, size_t offset, size_t length, std::byte* out) {
  const ReduceArgs& how = *op.post.reduce;
  const bool scatter = op.post.descriptor.kind == wire::Kind::kReduceScatter;
  const size_t element = element_size(how.element), wide = accumulator_size(how.element);
  const Slice& own = how.inputs[scatter ? params_.self : 0];
  accumulator_.resize(std::max(accumulator_.size(), kTile / element * wide));
  tile_.resize(kTile);
  // Straight into the output, unless that is wider or still holds the own contribution.
  const bool in_place = own.data() + offset == out;
  const bool straight = wide == element && how.reduction != Reduction::kAvg && !in_place;
  const bool copies_first = wide == element && how.reduction != Reduction::kPremulSum;
  for (size_t at = 0; at < length; at += kTile) {
    const size_t bytes = std::min(kTile, length - at), count = bytes / element;
    std::byte* const sum = straight ? out + at : accumulator_.data();
    for (uint32_t i = 0; i < params_.size; i++) {
      const auto m = static_cast<Member>(i);
      const std::byte* source = own.data() + offset + at;
      if (m != params_.self) {
        std::byte* const to = i == 0 && copies_first ? sum : tile_.data();
        if (!fetch(m, op.sources[m].address + offset + at, to, bytes)) return false;
        if (to == sum) continue;
        source = to;
      }
      (i == 0 ? fold_first : fold_next)(how.element, how.reduction, op.sources[m].factor, source,
                                        sum, count);
    }
    if (!straight) {
      fold_finish(how.element, how.reduction, params_.size, sum, out + at, count);
    }
  }
  return true;
}

// One round of an all_reduce that is not done in one step.
void HostCore::take_all_reduce(Op& op, uint32_t index) {
  if (op.plan.direct && index == 0) return;
  const HostPlan::Step step =
      op.plan.direct ? HostPlan::Step{true, index - 1} : op.plan.step(index);
  const size_t slice = op.plan.slice, base = step.segment * slice * params_.size;
  const size_t end = op.post.descriptor.bytes, self = params_.self;
  const uint64_t round = op.first + index;
  if (!step.gathers) {
    const size_t length = clip(base + self * slice, slice, end);
    op.part.resize(length);
    if (length > 0) fold_slots(op, round, self * slice, length, op.part.data());
    op.folded++;
    return;
  }
  std::byte* const output = op.post.reduce->output.data();
  for (size_t m = 0; m < params_.size; m++) {
    const size_t at = base + m * slice, length = clip(at, slice, end);
    copy_result(output + at, data_of(static_cast<Member>(m), round), length, op.plan.whole);
  }
  streaming_fence();
}

HostCore::Took HostCore::take_reduction(Op& op, uint32_t index) {
  const uint64_t round = op.first + index;
  if (!all_agree(op)) return Took::kWaits;
  if (op.plan.direct && index == 0) learn_sources(op);
  if (op.first_byte == kNever) op.first_byte = port_.now();
  const wire::Descriptor& d = op.post.descriptor;
  const Slice& output = op.post.reduce->output;
  const size_t slice = op.plan.slice;
  if (op.plan.one_step) {
    if (d.bytes > 0) fold_slots(op, round, 0, d.bytes, output.data());
  } else if (d.kind == wire::Kind::kAllreduce) {
    take_all_reduce(op, index);
  } else if (op.plan.direct) {
    if (!fold_direct(op, 0, d.bytes, output.data())) return Took::kFailed;
  } else {
    const size_t offset = index * slice, length = clip(offset, slice, d.bytes);
    const size_t at = d.kind == wire::Kind::kReduceScatter ? params_.self * slice : 0;
    if (length > 0) fold_slots(op, round, at, length, output.data() + offset);
  }
  op.last_byte = port_.now();
  return Took::kAll;
}

}  // namespace mcast
