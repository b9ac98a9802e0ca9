// The owner of a block in a reduce-scatter: takes every member's contribution segment by segment
// and folds them in a given order, so that the bits of the result do not depend on timing
// (protocol/rack_fold.h). Limits how far contributors may send. Pure: no time, no sockets.
//
// Contributions arrive in the order of the owner's list: all segments of the block, or those that
// are not folded elsewhere. Results of segments folded elsewhere are placed here as they arrive; a
// segment whose result will not arrive is appended to the list. "Place": an index in the list.
//
// Memory: a member may have at most `window` segments here that are not folded. The grants limit
// their sum over all members, which is the staging; accumulators take window x segment (twice that
// for 16-bit floats, which accumulate in 32 bits), for each rack.
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
  uint32_t members = 1;  // contributors, including the owner
  Member self = 0;       // the owner's number
  FoldOrder order = FoldOrder::kRank;
  const Racks* racks = nullptr;  // racks of the contributors, which outlive the owner; null: one
  // The owner's contribution comes by contribute(), it is not read here.
  bool contributed = false;
  uint32_t divisor = 0;  // AVG: divisor of the sum; 0: members
  bool wide = false;     // contributions are in elements of the accumulator
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  double factor = 1;                // PREMUL_SUM: the owner's
  size_t bytes = 0;                 // of the block, a multiple of the element's size
  size_t segment = 1;               // bytes of the block, a multiple of every element
  uint32_t window = 1;              // segments
  uint64_t own_ready = UINT64_MAX;  // bytes of the owner's contribution that can be read
  bool granted = false;             // contributors send without being asked (small blocks)
  // Segments that contributors send here, in their order; the others are folded elsewhere. Nothing:
  // all, ascending.
  std::optional<std::vector<uint32_t>> list;
};

class ReduceOwner {
 public:
  // `own`: the owner's contribution; `out`: memory of the result; both of shape.bytes, may be the
  // same memory. All arguments outlive this object.
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
  // Length of the final prefix of the block.
  uint64_t final_bytes() const;
  bool complete() const { return final_count() == segments_; }

  // End of the places that contributors may send so far; grant() raises it, to at most folded() +
  // window.
  uint32_t granted() const { return granted_; }
  void grant(uint32_t end);

  // Contributions of others that have been accepted, or will not arrive.
  uint64_t arrived() const { return arrived_.in_all + uint64_t{granted_} * excused_.others; }

  // These contributors have contributed nothing and will not: everything is folded without them.
  // Called at most once, not for all of them. AVG then divides by `divisor`.
  void excuse(std::span<const Member> gone, uint32_t divisor);

  // Handles a contribution. Returns false, without effect, if it is not granted, out of order, or
  // of the wrong size.
  bool accept(Member from, uint32_t place, double factor, ConstBytes payload);
  // The owner's contribution (shape.contributed) to place contributed(), the one after the last
  // contributed one, with its factor. Requires contributed() < granted().
  void contribute(ConstBytes payload);
  uint32_t contributed() const { return arrived_.of[shape_.self]; }
  // The owner's input can be read up to this byte.
  void own_ready(uint64_t bytes);

  // Returns true if the segment is folded elsewhere and its result has not arrived.
  bool awaits(uint32_t segment) const {
    return listed_ && segment < segments_ && states_[segment] == State::kElsewhere;
  }
  // The result of an awaited segment. Returns false, without effect, if it is not awaited or has
  // another length.
  bool place_result(uint32_t segment, ConstBytes result);
  // The same for a result of all contributions but the owner's, in elements of the accumulator: the
  // owner's is `own`, with its factor; it is the last in the order of folding, or the order does
  // not affect the bits. Ignores `own` if the owner is excused.
  bool place_partial(uint32_t segment, ConstBytes partial, ConstBytes own);
  // An awaited segment is folded here: it is appended to the list.
  void take_over(uint32_t segment);

 private:
  struct Accumulation {  // one segment in progress
    RackFold fold;
    std::vector<std::byte> own;  // accumulator, unless the result's memory is used
  };

  enum class State : uint8_t { kListed, kElsewhere, kFinal };  // of a segment

  size_t length(uint32_t segment) const;
  Accumulation& accumulation(uint32_t place) {
    return accumulations_[place % accumulations_.size()];
  }
  uint32_t final_count() const { return listed_ ? final_count_ : folded_; }
  // Prepares for contributions to granted places from `first` on.
  void open(uint32_t first);
  void excuse_in(RackFold& fold) const;
  void take(Member from, uint32_t place, double factor, ConstBytes payload);
  // Folds the owner's contribution if it is the next in order and can be read.
  void fold_own(uint32_t place);
  void finish_ready();
  void set_final(uint32_t segment);

  const ReduceShape shape_;
  const std::byte* own_;
  std::byte* out_;
  BufferPool& pool_;
  FoldRule rule_;
  const FoldRun run_;
  const bool listed_;  // some segments are folded elsewhere; else the fields for that are empty
  std::vector<uint32_t> list_;
  std::vector<State> states_;                    // by segment
  uint32_t final_count_ = 0, final_prefix_ = 0;  // segments
  bool direct_;  // accumulate in `out`: same element size, and not the memory of the owner's input
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
