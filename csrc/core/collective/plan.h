// The plan of an operation: number of chunks, chunks that may be sent eagerly, roots that send at
// once, window. A pure function of the descriptor and of the agreement made at creation, never of
// local state, so that all ranks compute the same plan.
#pragma once

#include <algorithm>

#include "base/element.h"
#include "base/types.h"
#include "collective/agreed.h"
#include "wire/descriptor.h"

namespace mcast {

// Algorithm of a reduction.
enum class ReduceWay : uint8_t {
  kNone,     // not a reduction
  kScatter,  // every member folds its block
  kGather,   // all_reduce: in addition, every member multicasts its block
  kToRoot,   // reduce: in addition, every member sends its block to the root
  kOneStep,  // small all_reduce: all members multicast their inputs and fold all of them
};

// Parameters of the contributions.
struct ReducePlan {
  ReduceWay way = ReduceWay::kNone;
  size_t share = 0;        // bytes of one member's block; the last may be shorter
  size_t segment = 0;      // bytes of the block that one contribution frame covers
  uint32_t lookahead = 0;  // segments that a contributor may have outstanding at an owner
  bool unasked = false;    // contributions are sent without a grant
};

// Chunks of a stream that may be under way whatever the receive budget is. A smaller share of the
// budget would not be worth its reports.
inline constexpr Chunk kLeastWindow = 4;

struct Plan {
  wire::Descriptor descriptor;
  uint32_t hash = 0;
  uint32_t roots = 0;   // streams: 1 for broadcast, members for allgather, 0 for barrier, exchanges
  size_t block = 0;     // bytes of one stream
  Chunk chunks = 0;     // of one stream
  size_t chunk = 0;     // bytes
  bool small = false;   // completes locally at once; its root keeps the data for repair
  uint32_t chains = 1;  // roots that send at once, when not small
  Chunk eager = 0;      // chunks a root may send before credit
  Chunk window = 1;     // chunks beyond the smallest high-water mark, at first and at least
  Chunk widest = 1;     // the same where the path itself holds more: as much as receivers can queue
  Chunk quantum = 1;    // progress between two credit reports
  Chunk batch = 1;      // chunks per send batch
  Chunk tolerance = 1;  // reorder tolerance of loss detection
  bool large = false;   // counts against the lane's budget while in flight
  ReducePlan reduce;

  // Bytes of chunk `c` (the last one may be shorter).
  size_t length(Chunk c) const {
    return c + 1 == chunks ? block - static_cast<size_t>(c) * chunk : chunk;
  }
  // Bytes of a range of chunks.
  size_t length(ChunkRange r) const {
    return (r.end == chunks ? block : static_cast<size_t>(r.end) * chunk) -
           static_cast<size_t>(r.first) * chunk;
  }
  bool trivial() const { return chunks == 0; }
  // Chunks of each stream that are sent before credit, so that a late member must keep them. A
  // small stream is sent whole, even if it is shorter than a chunk and `eager` therefore 0.
  Chunk ahead() const { return small ? chunks : std::min(eager, chunks); }
  // The only stream is the root's.
  bool one_root() const { return descriptor.kind == wire::Kind::kBroadcast; }
};

// Largest block, bytes: chunk indices have 32 bits, with room to add a batch.
constexpr uint64_t max_block(const Agreed& agreed) {
  return static_cast<uint64_t>(0xffff0000u) * agreed.chunk;
}

// Limits on the size of a contribution frame. It may be shorter if the block is. The largest must
// fit kMaxBulkFrame.
inline constexpr size_t kMinSegment = 4u << 10;
inline constexpr size_t kMaxSegment = 60u << 10;
// Bytes of a segment of any reduction.
size_t contribution_segment(const Agreed& agreed);
// The same for a given reduction, in bytes of the block. Contributions that a host has folded, and
// a rack's sum, must fit a frame, too.
size_t reduce_segment(const Agreed& agreed, const wire::Descriptor& descriptor);
// Bytes of a contribution for each byte of the block.
size_t contribution_ratio(const Agreed& agreed, const wire::Descriptor& descriptor);
// Most segments that a contributor may have been granted and that are not folded yet.
inline constexpr uint32_t kMostLookahead = 16;
// Segments of one grant, when at most `most` (2 at least) may be outstanding per contributor: few
// frames, and yet a contributor seldom waits for the next grant. A grant covers all of `most` only
// if segments are small: contributions are folded in rank order, and the first contributor's second
// segment would only wait there for the last contributor's first.
constexpr uint32_t grant_step(uint32_t most, size_t segment) {
  constexpr size_t kSmall = 16u << 10;
  return std::max(segment <= kSmall ? 2u : 1u, most / 2);
}
// Most runs of segments that an owner takes over from a station, in one frame.
inline constexpr size_t kMostDiverted = 64;
// Blocks up to this size need no grant.
inline constexpr size_t kUnaskedBlock = 16u << 10;
// Bytes that each of `roots` roots may send unasked, before receive memory is considered. A single
// root may send as much as eight together, up to kLoneEager, because credit for a broadcast costs
// every rank frames and the root a round trip. At most a quarter of the staging, so that a late
// rank can keep several.
inline constexpr size_t kLoneEager = 256u << 10;
constexpr size_t unasked_by_root(size_t eager, size_t staging, size_t roots) {
  if (roots > 1) return eager;
  return std::max(eager, std::min({8 * eager, kLoneEager, staging / 4}));
}
// An all_reduce in one step moves members x bytes into every member. Limit of that product.
inline constexpr size_t kOneStepBytes = 64u << 10;

// `element`: bytes of one element of a reduction. descriptor.bytes <= max_block(agreed).
Plan make_plan(const wire::Descriptor& descriptor, const Agreed& agreed, size_t element = 1);

}  // namespace mcast
