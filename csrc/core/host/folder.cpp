// Tile by tile, so that a tile and its accumulator stay in the cache: all contributions to one
// tile, then the next. Where the accumulator is as wide as the element it is the output itself,
// unless that is to be divided yet, or still holds the own contribution.
#include "host/folder.h"

#include <algorithm>
#include <cstring>

#include "base/reduce_kernels.h"

namespace mcast {
namespace {

constexpr size_t kTile = 128u << 10;  // bytes of a contribution that are folded at once

}  // namespace

FoldLayout Folder::layout(const HostOperation& op) const {
  const wire::Descriptor& d = op.post.descriptor;
  if (d.kind == wire::Kind::kReduceScatter) {
    return {order_, lane_.size(), lane_.self(), std::max<size_t>(1, d.bytes)};
  }
  const size_t element = element_size(op.post.reduce->element);
  return {order_, lane_.size(), 0, block_share(d.bytes, element, lane_.size())};
}

void Folder::fold_slots(const HostOperation& op, uint64_t round, size_t in_slot, size_t offset,
                        size_t length, std::byte* out) {
  layout(op).for_each_part(offset, length, [&](size_t at, size_t bytes, uint32_t first) {
    const size_t skip = at - offset;
    fold_slots_from(first, *op.post.reduce, round, in_slot + skip, bytes, out + skip);
  });
}

void Folder::fold_slots_from(uint32_t first, const ReduceArgs& how, uint64_t round, size_t in_slot,
                             size_t length, std::byte* out) {
  const size_t element = element_size(how.element), wide = accumulator_size(how.element);
  accumulator_.resize(std::max(accumulator_.size(), kTile / element * wide));
  for (size_t at = 0; at < length; at += kTile) {
    const size_t count = std::min(kTile, length - at) / element;
    for (uint32_t i = 0; i < lane_.size(); i++) {
      const auto m = static_cast<Member>((first + i) % lane_.size());
      const std::byte* const source = lane_.data(m, round) + in_slot + at;
      const double factor = lane_.header(m, round).factor;
      (i == 0 ? fold_first : fold_next)(how.element, how.reduction, factor, source,
                                        accumulator_.data(), count);
    }
    fold_finish(how.element, how.reduction, lane_.size(), accumulator_.data(), out + at, count);
  }
}

void Folder::learn_sources(HostOperation& op) const {
  for (uint32_t i = 0; i < lane_.size(); i++) {
    const auto m = static_cast<Member>(i);
    const SlotHeader& header = lane_.header(m, op.first);
    uint64_t address = header.address;
    if (op.post.descriptor.kind == wire::Kind::kReduceScatter) {
      std::memcpy(&address, lane_.data(m, op.first) + lane_.self() * sizeof address,
                  sizeof address);
    }
    op.sources.push_back({address, header.factor});
  }
}

bool Folder::fetch(Member from, uint64_t address, std::byte* to, size_t length) {
  Status status = port_.read(from, address, to, length);
  if (status.ok()) {
    counters_.add(Counter::shm_direct_bytes, length);
    return true;
  }
  unreadable_ = {from, std::move(status)};
  return false;
}

bool Folder::fold_direct(const HostOperation& op, size_t offset, size_t length, std::byte* out) {
  bool readable = true;
  layout(op).for_each_part(offset, length, [&](size_t at, size_t bytes, uint32_t first) {
    readable = readable && fold_direct_from(first, op, at, bytes, out + (at - offset));
  });
  return readable;
}

bool Folder::fold_direct_from(uint32_t first, const HostOperation& op, size_t offset, size_t length,
                              std::byte* out) {
  const ReduceArgs& how = *op.post.reduce;
  const bool scatter = op.post.descriptor.kind == wire::Kind::kReduceScatter;
  const size_t element = element_size(how.element), wide = accumulator_size(how.element);
  const Slice& own = how.inputs[scatter ? lane_.self() : 0];
  accumulator_.resize(std::max(accumulator_.size(), kTile / element * wide));
  tile_.resize(kTile);
  const bool in_place = own.data() + offset == out;
  const bool straight = wide == element && how.reduction != Reduction::kAvg && !in_place;
  const bool copies_first = wide == element && how.reduction != Reduction::kPremulSum;
  for (size_t at = 0; at < length; at += kTile) {
    const size_t bytes = std::min(kTile, length - at), count = bytes / element;
    std::byte* const sum = straight ? out + at : accumulator_.data();
    for (uint32_t i = 0; i < lane_.size(); i++) {
      const auto m = static_cast<Member>((first + i) % lane_.size());
      const std::byte* source = own.data() + offset + at;
      if (m != lane_.self()) {
        std::byte* const to = i == 0 && copies_first ? sum : tile_.data();
        if (!fetch(m, op.sources[m].address + offset + at, to, bytes)) return false;
        if (to == sum) continue;
        source = to;
      }
      (i == 0 ? fold_first : fold_next)(how.element, how.reduction, op.sources[m].factor, source,
                                        sum, count);
    }
    if (!straight) {
      fold_finish(how.element, how.reduction, lane_.size(), sum, out + at, count);
    }
  }
  return true;
}

}  // namespace mcast
