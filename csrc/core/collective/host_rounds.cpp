// The data of a round. In slots: what the others need is copied into this rank's slot, and taken
// from theirs. Direct: the slot names addresses, and the takers read them. A reduction folds the
// contributions of all ranks in rank order, tile by tile, so that a tile and its accumulator stay
// in the cache; 16-bit floats accumulate in float32 (base/reduce_kernels.h).
//
// all_reduce: in one step everybody folds everything; otherwise in pairs of rounds: each rank folds
// its part of what the first publishes, and the second publishes the results.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/reduce_kernels.h"
#include "collective/host_core.h"

namespace mcast {
namespace {

constexpr size_t kTile = 128u << 10;  // bytes of a contribution that are folded at once
constexpr size_t kPiece = 4u << 20;   // bytes of a direct read

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
      } else if (op.plan.direct) {
        r.address = address(index == 0 ? reduce->inputs[0] : reduce->output);
      } else if (index % 2 == 0) {
        copy(reduce->inputs[0], index / 2 * slice * params_.size, slice * params_.size, 0);
      } else {
        std::memcpy(data, op.part.data(), op.part.size());
        copied += op.part.size();
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
      return all_published(op.first + index) ? Took::kAll : Took::kWaits;
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
    if (op.taken[m] || m == params_.self) continue;
    if (!published(m, round)) {
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
    if (op.taken[m] || m == params_.self) continue;
    if (!published(m, round)) {
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
bool HostCore::fold_direct(Op& op, size_t offset, size_t length, std::byte* out) {
  const ReduceArgs& how = *op.post.reduce;
  const bool scatter = op.post.descriptor.kind == wire::Kind::kReduceScatter;
  const size_t element = element_size(how.element), wide = accumulator_size(how.element);
  accumulator_.resize(std::max(accumulator_.size(), kTile / element * wide));
  tile_.resize(kTile);
  const Slice& own = how.inputs[scatter ? params_.self : 0];
  for (size_t at = 0; at < length; at += kTile) {
    const size_t bytes = std::min(kTile, length - at), count = bytes / element;
    for (uint32_t i = 0; i < params_.size; i++) {
      const auto m = static_cast<Member>(i);
      const std::byte* source = own.data() + offset + at;
      const HostRound& r = round_of(m, op.first);
      if (m != params_.self) {
        uint64_t address = r.address;
        if (scatter) {
          std::memcpy(&address, data_of(m, op.first) + params_.self * sizeof address,
                      sizeof address);
        }
        if (!fetch(m, address + offset + at, tile_.data(), bytes)) return false;
        source = tile_.data();
      }
      (i == 0 ? fold_first : fold_next)(how.element, how.reduction, r.factor, source,
                                        accumulator_.data(), count);
    }
    fold_finish(how.element, how.reduction, params_.size, accumulator_.data(), out + at, count);
  }
  return true;
}

HostCore::Took HostCore::take_reduction(Op& op, uint32_t index, bool large) {
  const uint64_t round = op.first + index;
  if (!all_published(round)) return Took::kWaits;
  if (op.plan.direct && !large) return Took::kLarge;
  if (op.first_byte == kNever) op.first_byte = port_.now();
  const wire::Descriptor& d = op.post.descriptor;
  const Slice& output = op.post.reduce->output;
  const size_t slice = op.plan.slice, share = op.plan.share, self = params_.self;
  bool good = true;
  using wire::Kind;
  if (d.kind != Kind::kAllreduce) {
    if (op.plan.direct) {
      good = fold_direct(op, 0, d.bytes, output.data());
    } else {
      const size_t offset = index * slice, length = clip(offset, slice, d.bytes);
      const size_t at = d.kind == Kind::kReduceScatter ? self * slice : 0;
      if (length > 0) fold_slots(op, round, at, length, output.data() + offset);
    }
  } else if (op.plan.one_step) {
    if (d.bytes > 0) fold_slots(op, round, 0, d.bytes, output.data());
  } else if (op.plan.direct && index == 0) {
    const size_t length = clip(self * share, share, d.bytes);
    if (length > 0) good = fold_direct(op, self * share, length, output.data() + self * share);
  } else if (op.plan.direct) {
    for (size_t i = 1; i < params_.size && good; i++) {
      const size_t m = (self + i) % params_.size, length = clip(m * share, share, d.bytes);
      if (length == 0) continue;
      const auto from = static_cast<Member>(m);
      good =
          fetch(from, round_of(from, round).address + m * share, output.data() + m * share, length);
    }
  } else {
    const size_t base = index / 2 * slice * params_.size;
    if (index % 2 == 0) {
      op.part.resize(clip(base + self * slice, slice, d.bytes));
      if (!op.part.empty()) fold_slots(op, round, self * slice, op.part.size(), op.part.data());
    } else {
      for (size_t m = 0; m < params_.size; m++) {
        const size_t at = base + m * slice, length = clip(at, slice, d.bytes);
        if (length > 0) {
          std::memcpy(output.data() + at, data_of(static_cast<Member>(m), round), length);
        }
      }
    }
  }
  if (!good) return Took::kFailed;
  op.last_byte = port_.now();
  return Took::kAll;
}

}  // namespace mcast
