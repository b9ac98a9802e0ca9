// The data of a round. In slots: what the others need is copied into this rank's slot, and taken
// from theirs. Direct: the slot names addresses, and the takers read them. A reduction folds the
// contributions of all ranks in rank order, tile by tile, so that a tile and its accumulator stay
// in the cache; 16-bit floats accumulate in float32 (base/reduce_kernels.h).
//
// all_reduce: in one step everybody folds everything; otherwise segment by segment: in one round
// each rank folds its part of the segment, in another it publishes the result for all to gather.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/reduce_kernels.h"
#include "collective/host_core.h"

namespace mcast {
namespace {

constexpr size_t kTile = 128u << 10;  // bytes of a contribution that are folded at once
constexpr size_t kPiece = 4u << 20;   // bytes of a direct read

template <typename Op>
bool all_agree(const Op& op) {
  return std::all_of(op.agreed.begin(), op.agreed.end(), [](bool yes) { return yes; });
}

size_t clip(size_t from, size_t length, size_t end) {
  return from >= end ? 0 : std::min(length, end - from);
}

}  // namespace

void HostCore::fill(Op& op, uint32_t index) {
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
    case Kind::kAllgather:
      if (d.kind == Kind::kBroadcast && d.root != params_.self) break;
      r.address = address(op.post.input);
      if (!op.plan.direct) copy(op.post.input, index * slice, slice, 0);
      break;
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
        const auto [gathers, segment] = op.plan.step(index);
        r.address = address(gathers ? reduce->output : reduce->inputs[0]);
        if (op.plan.direct) break;
        if (gathers) {
          std::memcpy(data, op.part.data(), op.part.size());
          copied += op.part.size();
        } else {
          const size_t span = slice * params_.size;
          copy(reduce->inputs[0], segment * span, span, 0);
        }
      }
      break;
  }
  counters_.add(Counter::shm_slot_bytes, copied);
}

HostCore::Took HostCore::take(Op& op, uint32_t index, bool large) {
  using wire::Kind;
  const wire::Descriptor& d = op.post.descriptor;
  switch (d.kind) {
    case Kind::kBarrier:
      return all_agree(op) ? Took::kAll : Took::kWaits;
    case Kind::kBroadcast:
      if (d.root == params_.self) return Took::kAll;
      [[fallthrough]];
    case Kind::kAllgather:
      return op.plan.direct ? take_direct_blocks(op, large) : take_blocks(op, index);
    case Kind::kReduce:
      if (d.root != params_.self) return Took::kAll;
      [[fallthrough]];
    default:
      return take_reduction(op, index, large);
  }
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
    if (length > 0) std::memcpy(out.data() + offset, data_of(m, round), length);
    op.taken[m] = true;
    if (op.post.on_mark && length > 0) op.post.on_mark(s, offset + length);
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

HostCore::Took HostCore::take_direct_blocks(Op& op, bool large) {
  const bool one = op.post.descriptor.kind == wire::Kind::kBroadcast;
  const auto slots = static_cast<uint32_t>(op.post.outputs.size());
  const uint64_t round = op.first;
  bool all = true;
  for (uint32_t i = 1; i <= slots; i++) {
    // Everybody starts with its successor: no block is read by all at once.
    const uint32_t s = (params_.self + i) % slots;
    const Member m = one ? op.post.descriptor.root : static_cast<Member>(s);
    if (op.taken[m]) continue;
    if (!op.agreed[m]) {
      all = false;
      continue;
    }
    if (!large) return Took::kLarge;
    if (op.first_byte == kNever) op.first_byte = port_.now();
    const Slice& out = op.post.outputs[s];
    const size_t piece =
        op.post.on_mark ? std::clamp<size_t>(op.post.mark_step, 1, kPiece) : kPiece;
    for (size_t at = 0; at < out.length; at += piece) {
      const size_t length = std::min(piece, out.length - at);
      if (!fetch(m, round_of(m, round).address + at, out.data() + at, length)) {
        return Took::kFailed;
      }
      if (op.post.on_mark) op.post.on_mark(s, at + length);
    }
    op.taken[m] = true;
  }
  if (all) op.last_byte = port_.now();
  return all ? Took::kAll : Took::kWaits;
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

// Folds the part at `offset` of everybody's tensor (reduce_scatter: of what it has for this rank).
bool HostCore::fold_direct(Op& op, uint32_t index, size_t offset, size_t length, std::byte* out) {
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
      const HostRound& r = round_of(m, op.first + index);
      const std::byte* source = own.data() + offset + at;
      if (m != params_.self) {
        uint64_t address = r.address;
        if (scatter) {
          std::memcpy(&address, data_of(m, op.first + index) + params_.self * sizeof address,
                      sizeof address);
        }
        std::byte* const to = i == 0 && copies_first ? sum : tile_.data();
        if (!fetch(m, address + offset + at, to, bytes)) return false;
        if (to == sum) continue;
        source = to;
      }
      (i == 0 ? fold_first : fold_next)(how.element, how.reduction, r.factor, source, sum, count);
    }
    if (!straight) {
      fold_finish(how.element, how.reduction, params_.size, sum, out + at, count);
    }
  }
  return true;
}

// One round of an all_reduce that is not done in one step.
bool HostCore::take_all_reduce(Op& op, uint32_t index) {
  const auto [gathers, segment] = op.plan.step(index);
  const size_t slice = op.plan.slice, base = segment * slice * params_.size;
  const size_t end = op.post.descriptor.bytes, self = params_.self;
  const uint64_t round = op.first + index;
  std::byte* const output = op.post.reduce->output.data();
  if (!gathers) {
    const size_t at = base + self * slice, length = clip(at, slice, end);
    if (op.plan.direct) return length == 0 || fold_direct(op, index, at, length, output + at);
    op.part.resize(length);
    if (length > 0) fold_slots(op, round, self * slice, length, op.part.data());
    return true;
  }
  for (size_t i = 0; i < params_.size; i++) {
    const size_t m = (self + 1 + i) % params_.size;
    const size_t at = base + m * slice, length = clip(at, slice, end);
    const auto from = static_cast<Member>(m);
    if (length == 0 || (op.plan.direct && m == self)) continue;
    if (!op.plan.direct) {
      std::memcpy(output + at, data_of(from, round), length);
    } else if (!fetch(from, round_of(from, round).address + at, output + at, length)) {
      return false;
    }
  }
  return true;
}

HostCore::Took HostCore::take_reduction(Op& op, uint32_t index, bool large) {
  const uint64_t round = op.first + index;
  if (!all_agree(op)) return Took::kWaits;
  if (op.plan.direct && !large) return Took::kLarge;
  if (op.first_byte == kNever) op.first_byte = port_.now();
  const wire::Descriptor& d = op.post.descriptor;
  const Slice& output = op.post.reduce->output;
  const size_t slice = op.plan.slice;
  bool good = true;
  if (op.plan.one_step) {
    if (d.bytes > 0) fold_slots(op, round, 0, d.bytes, output.data());
  } else if (d.kind == wire::Kind::kAllreduce) {
    good = take_all_reduce(op, index);
    if (!op.plan.step(index).gathers) op.folded++;
  } else if (op.plan.direct) {
    good = fold_direct(op, index, 0, d.bytes, output.data());
  } else {
    const size_t offset = index * slice, length = clip(offset, slice, d.bytes);
    const size_t at = d.kind == wire::Kind::kReduceScatter ? params_.self * slice : 0;
    if (length > 0) fold_slots(op, round, at, length, output.data() + offset);
  }
  if (!good) return Took::kFailed;
  op.last_byte = port_.now();
  return Took::kAll;
}

}  // namespace mcast
