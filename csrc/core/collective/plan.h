// The plan of an operation: how many chunks, what may be sent eagerly, which roots send at once,
// how wide the window is. A pure function of the descriptor and of what the group agreed on at
// creation, never of local state, so that all ranks make the same one.
#pragma once

#include <algorithm>

#include "base/element.h"
#include "base/fold_order.h"
#include "base/types.h"
#include "protocol/placement.h"
#include "protocol/racks.h"
#include "wire/descriptor.h"

namespace mcast {

// Agreed by all members when the group is made.
struct Agreed {
  uint32_t members = 1;
  uint32_t contributors = 0;   // to one block of a reduction: hosts, or 0: members
  size_t chunk = 1408;         // payload bytes per datagram
  size_t guard = 0;            // bytes that a guarded group's datagrams are longer by
  size_t budget = 128 * 1024;  // least receive budget of any member: payload bytes a socket queues
  size_t batch = 64 * 1024;    // bytes of one send batch
  size_t eager = 32 * 1024;    // setting
  size_t staging = 4u << 20;   // setting
  size_t window = 0;           // setting; 0: from the budget
  uint32_t chains = 0;         // setting; 0: chosen here
  uint32_t reorder = 0;        // setting; 0: one batch
  uint32_t share = 1;          // groups that use a receiver's link at once, as parts of one
  uint32_t stripes = 1;        // interfaces that the multicast lane alternates over
  size_t port_queue = 2u << 20;  // setting: bytes of all roots that may wait at a switch port
  size_t incast = 1u << 20;  // setting: bytes of contributions that one owner may have asked for
  FoldOrder fold = FoldOrder::kRank;                  // setting
  AggregateMode aggregate = AggregateMode::kCareful;  // setting
  bool source_auth = false;                           // setting
  Racks racks;                                        // of the contributors
};

// How a reduction is done.
enum class ReduceWay : uint8_t {
  kNone,     // not a reduction
  kScatter,  // every member folds its block
  kGather,   // all_reduce: besides, every member multicasts its block
  kToRoot,   // reduce: besides, every member sends its block to the root
  kOneStep,  // small all_reduce: everybody multicasts its input and folds all of them
};

// The part of a plan that is about contributions.
struct ReducePlan {
  ReduceWay way = ReduceWay::kNone;
  size_t share = 0;        // bytes of one member's block; the last may be shorter
  size_t segment = 0;      // bytes of the block that one contribution frame is for
  uint32_t lookahead = 0;  // segments a contributor may have at an owner
  bool unasked = false;    // contributions are sent without a grant
};

// Chunks of a stream that may be under way whatever the receive budget is; a share of it that is
// less than this is not worth the reports.
inline constexpr Chunk kLeastWindow = 4;

struct Plan {
  wire::Descriptor descriptor;
  uint32_t hash = 0;
  uint32_t roots = 0;   // streams: 1 for broadcast, members for allgather, 0 for barrier, exchanges
  size_t block = 0;     // bytes of one stream
  Chunk chunks = 0;     // of one stream
  size_t chunk = 0;     // bytes
  bool small = false;   // finishes locally at once; its data is kept for repair by its root
  uint32_t chains = 1;  // roots that send at once, when not small
  Chunk eager = 0;      // chunks a root may send before credit
  Chunk window = 1;     // chunks beyond the least high-water mark, at first and at least
  Chunk widest = 1;     // the same where the path holds more on its way: what receivers can queue
  Chunk quantum = 1;    // progress between two credit reports
  Chunk batch = 1;      // chunks per send batch
  Chunk tolerance = 1;  // reorder tolerance of loss detection
  bool large = false;   // counts against the lane's budget while in flight
  ReducePlan reduce;

  // Bytes of chunk `c` (the last one may be short).
  size_t length(Chunk c) const {
    return c + 1 == chunks ? block - static_cast<size_t>(c) * chunk : chunk;
  }
  // Bytes of the run.
  size_t length(ChunkRange r) const {
    return (r.end == chunks ? block : static_cast<size_t>(r.end) * chunk) -
           static_cast<size_t>(r.first) * chunk;
  }
  bool trivial() const { return chunks == 0; }
  // Chunks of each stream that leave before credit, so that a member that is late must keep them.
  // A small stream does so whole, also where it is shorter than a chunk of which `eager` has none.
  Chunk ahead() const { return small ? chunks : std::min(eager, chunks); }
  // The only stream is the root's.
  bool one_root() const { return descriptor.kind == wire::Kind::kBroadcast; }
};

// Largest block, bytes: chunk indices are 32 bits, with room to add a batch.
constexpr uint64_t max_block(const Agreed& agreed) {
  return static_cast<uint64_t>(0xffff0000u) * agreed.chunk;
}

// Frames of contributions: at least so long, unless the block is shorter, and at most (the frame
// must fit kMaxBulkFrame).
inline constexpr size_t kMinSegment = 4u << 10;
inline constexpr size_t kMaxSegment = 60u << 10;
// Bytes of a segment of any reduction.
size_t contribution_segment(const Agreed& agreed);
// The same of a given reduction, in bytes of the block, where what hosts have folded and a rack's
// sum must fit a frame too.
size_t reduce_segment(const Agreed& agreed, const wire::Descriptor& descriptor);
// Bytes of a contribution for each byte of the block.
size_t contribution_ratio(const Agreed& agreed, const wire::Descriptor& descriptor);
// Segments that a contributor may have been asked for and that are not folded: at most.
inline constexpr uint32_t kMostLookahead = 16;
// Segments of one grant, where `most` (2 at least) may be outstanding per contributor: few frames,
// and yet a contributor seldom waits for the next. All that is allowed at once only where segments
// are small: contributions are folded in rank order, and the first contributor's second segment
// would only lie there while the last one's first is waited for.
constexpr uint32_t grant_step(uint32_t most, size_t segment) {
  constexpr size_t kSmall = 16u << 10;
  return std::max(segment <= kSmall ? 2u : 1u, most / 2);
}
// Runs of segments that an owner takes over from a station, in one frame.
inline constexpr size_t kMostDiverted = 64;
// Blocks up to this need no grant.
inline constexpr size_t kUnaskedBlock = 16u << 10;
// Bytes that each of so many roots may send unasked, before receive memory is looked at. A lone
// root may send as much as eight together, up to kLoneEager: credit for a broadcast costs every
// rank frames and its root a round trip. A quarter of the staging, so that a late rank can keep
// several.
inline constexpr size_t kLoneEager = 256u << 10;
constexpr size_t unasked_by_root(size_t eager, size_t staging, size_t roots) {
  if (roots > 1) return eager;
  return std::max(eager, std::min({8 * eager, kLoneEager, staging / 4}));
}
// An all_reduce in one step moves members x bytes into every member: at most this.
inline constexpr size_t kOneStepBytes = 64u << 10;

// `element`: bytes of one element of a reduction. descriptor.bytes <= max_block(agreed).
Plan make_plan(const wire::Descriptor& descriptor, const Agreed& agreed, size_t element = 1);

}  // namespace mcast
