// Folds tile by tile, so that a tile and its accumulator stay in the cache: all contributions to
// one tile, then the next. If the accumulator is as wide as the element, the output itself is the
// accumulator, unless it must still be divided, or still contains this rank's contribution.
#include "shm/folder.h"

#include <algorithm>
#include <cstring>

#include "base/reduce_kernels.h"
#include "base/streaming_copy.h"

namespace mcast {
namespace {

// Bytes of a contribution folded at once. Each tile read by the kernel costs a system call; mapped
// tiles are small enough that their sum stays in the first-level cache.
constexpr size_t kTile = 128u << 10, kMappedTile = 16u << 10;

size_t tile_of(const HostOperation& op, Member self) {
  for (size_t m = 0; m < op.sources.size(); m++) {
    if (m != self && (op.sources[m].place & HostPort::kInArena) == 0) return kTile;
  }
  return kMappedTile;
}

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
  accumulator_.resize(std::max(accumulator_.size(), std::min(kTile, length) / element * wide));
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
    uint64_t place = header.address;
    if (op.post.descriptor.kind == wire::Kind::kReduceScatter) {
      std::memcpy(&place, lane_.data(m, op.first) + lane_.self() * sizeof place, sizeof place);
    }
    op.sources.push_back({place, header.factor});
  }
}

const std::byte* Folder::mapped(Member from, uint64_t place, size_t length) {
  const std::byte* const there = port_.map(from, place, length);
  if (there != nullptr) counters_.add(Counter::shm_mapped_bytes, length);
  return there;
}

bool Folder::pull(Member from, uint64_t place, std::byte* to, size_t length, size_t whole) {
  if (length == 0) return true;
  const std::byte* const there = mapped(from, place, length);
  if (there == nullptr) return fetch(from, place, to, length);
  if (whole >= kStreamingFrom) {
    streaming_copy_from_memory(to, there, length);
  } else {
    std::memcpy(to, there, length);
  }
  return true;
}

bool Folder::fetch(Member from, uint64_t place, std::byte* to, size_t length) {
  Status status = port_.read(from, place, to, length);
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
  accumulator_.resize(std::max(accumulator_.size(), std::min(kTile, length) / element * wide));
  tile_.resize(kTile);
  const bool in_place = own.data() + offset == out;
  const bool straight = wide == element && how.reduction != Reduction::kAvg && !in_place;
  const bool copies_first = wide == element && how.reduction != Reduction::kPremulSum;
  const size_t tile = tile_of(op, lane_.self());
  for (size_t at = 0; at < length; at += tile) {
    const size_t bytes = std::min(tile, length - at), count = bytes / element;
    std::byte* const sum = straight ? out + at : accumulator_.data();
    for (uint32_t i = 0; i < lane_.size(); i++) {
      const auto m = static_cast<Member>((first + i) % lane_.size());
      const std::byte* source = own.data() + offset + at;
      if (m != lane_.self()) {
        const uint64_t place = op.sources[m].place + offset + at;
        source = mapped(m, place, bytes);
        if (source == nullptr) {
          std::byte* const to = i == 0 && copies_first ? sum : tile_.data();
          if (!fetch(m, place, to, bytes)) return false;
          if (to == sum) continue;
          source = to;
        }
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
