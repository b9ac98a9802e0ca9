// The owner of a block in a reduce-scatter: takes every member's contribution segment by segment
// and folds them in an order that is given, so that the bits of the result do not depend on who was
// faster (protocol/rack_fold.h). Says how far contributors may send. Pure: no time, no sockets.
//
// Contributions come in the order of the owner's list: all segments of the block, or those that are
// not folded elsewhere. The results of the others are placed here as they come; a segment whose
// result will not come is appended to the list. "Place": in the list.
//
// Memory: a member may have at most `window` segments here that are not folded. Whoever grants
// bounds their sum over all members, which is the staging; accumulators take window x segment
// (twice that for 16-bit floats, which accumulate in 32 bits), for each rack.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/element.h"
#include "base/fold_order.h"
#include "base/types.h"
#include "protocol/rack_fold.h"

namespace mcast {

struct ReduceShape {
  uint32_t members = 1;  // contributors; the owner is one of them
  Member self = 0;       // which
  FoldOrder order = FoldOrder::kRank;
  const Racks* racks = nullptr;  // of the contributors, outlive the owner; null: one
  bool contributed = false;      // our own contribution comes by contribute(), it is not read here
  uint32_t divisor = 0;          // AVG: of the sum; 0: members
  bool wide = false;             // contributions are in elements of the accumulator
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  double factor = 1;                // PREMUL_SUM: ours
  size_t bytes = 0;                 // of the block, a multiple of the element
  size_t segment = 1;               // bytes of the block, a multiple of every element
  uint32_t window = 1;              // segments
  uint64_t own_ready = UINT64_MAX;  // how far our own contribution can be read, bytes
  bool granted = false;             // contributors send without being asked (small blocks)
  // Segments that contributors bring here, in their order; the others are folded elsewhere.
  // Nothing: all, ascending.
  std::optional<std::vector<uint32_t>> list;
};

class ReduceOwner {
 public:
  // `own`: our contribution; `out`: where the result goes; both of shape.bytes, may be the same
  // memory. All outlive this object.
  ReduceOwner(const ReduceShape& shape, const std::byte* own, std::byte* out, BufferPool& pool);
  ~ReduceOwner();
  ReduceOwner(const ReduceOwner&) = delete;
  ReduceOwner& operator=(const ReduceOwner&) = delete;

  // Length of the list.
  uint32_t listed() const { return listed_ ? static_cast<uint32_t>(list_.size()) : segments_; }
  // The segment at a place, < listed().
  uint32_t segment_at(uint32_t place) const { return listed_ ? list_[place] : place; }
  // Places that are folded, from the start.
  uint32_t folded() const { return folded_; }
  // Of the block, from its start.
  uint64_t final_bytes() const;
  bool complete() const { return final_count() == segments_; }

  // Places that contributors may send so far; grant() raises it, to at most folded() + window.
  uint32_t granted() const { return granted_; }
  void grant(uint32_t end);

  // Contributions of others that have been accepted, or will not come.
  uint64_t arrived() const { return arrived_.in_all + uint64_t{granted_} * excused_.others; }

  // These contributors have contributed nothing and will not: all is folded without them. Once;
  // not all of them. AVG then divides by `divisor`.
  void excuse(std::span<const Member> gone, uint32_t divisor);

  // A contribution. False, and nothing happens: not granted, out of order, or of the wrong size.
  bool accept(Member from, uint32_t place, double factor, ConstBytes payload);
  // Our own contribution (shape.contributed) to the place after the last contributed one, which is
  // contributed(), with its factor. contributed() < granted().
  void contribute(ConstBytes payload);
  uint32_t contributed() const { return arrived_.of[shape_.self]; }
  // Our own input can be read up to here, bytes.
  void own_ready(uint64_t bytes);

  // Whether the segment is folded elsewhere and its result has not come.
  bool awaits(uint32_t segment) const {
    return listed_ && segment < segments_ && states_[segment] == State::kElsewhere;
  }
  // The result of an awaited segment. False, and nothing happens: it is none, or has another
  // length.
  bool place_result(uint32_t segment, ConstBytes result);
  // The same, of all contributions but ours, in elements of the accumulator: ours is `own`, with
  // our factor, and the last in the order of folding, or the order does not show. Where we are
  // excused it does not count.
  bool place_partial(uint32_t segment, ConstBytes partial, ConstBytes own);
  // An awaited segment is folded here: it becomes the last of the list.
  void take_over(uint32_t segment);

 private:
  struct Accumulation {  // one segment in progress
    RackFold fold;
    std::vector<std::byte> own;  // accumulator, unless the result's memory serves
  };

  enum class State : uint8_t { kListed, kElsewhere, kFinal };  // of a segment

  size_t length(uint32_t segment) const;
  Accumulation& accumulation(uint32_t place) {
    return accumulations_[place % accumulations_.size()];
  }
  uint32_t final_count() const { return listed_ ? final_count_ : folded_; }
  // Makes ready for contributions to granted places from `first` on.
  void open(uint32_t first);
  void excuse_in(RackFold& fold) const;
  void take(Member from, uint32_t place, double factor, ConstBytes payload);
  // Folds our own contribution if that is its turn and it can be read.
  void fold_own(uint32_t place);
  void finish_ready();
  void set_final(uint32_t segment);

  const ReduceShape shape_;
  const std::byte* own_;
  std::byte* out_;
  BufferPool& pool_;
  FoldRule rule_;
  const FoldRun run_;
  const bool listed_;  // some segments are folded elsewhere; else what these need is empty
  std::vector<uint32_t> list_;
  std::vector<State> states_;                    // by segment
  uint32_t final_count_ = 0, final_prefix_ = 0;  // segments
  bool direct_;  // accumulate in `out`: same element size, not our own input's memory
  uint32_t segments_, folded_ = 0, granted_ = 0;
  uint64_t own_ready_;
  struct {
    std::vector<uint32_t> of;  // by member: places
    uint64_t in_all = 0;
  } arrived_;
  struct {
    std::vector<Member> members;
    uint32_t others = 0;  // of these
  } excused_;
  std::vector<Accumulation> accumulations_;
  std::optional<SegmentFold> placing_;  // of partial results
};

}  // namespace mcast
