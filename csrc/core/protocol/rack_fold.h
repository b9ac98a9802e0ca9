// The fold of one segment in brackets: within each rack in the given order, then the racks' sums in
// ascending order (protocol/racks.h). Without racks it is a SegmentFold. A rack's sum can arrive as
// one partial result, from a station that has folded the rack: the bits are the same. Pure. Not
// thread-safe.
//
// Memory: that of a SegmentFold; besides, for each rack but the first an accumulator from `sums`,
// until it is in the sum of all.
#pragma once

#include <optional>
#include <vector>

#include "protocol/racks.h"
#include "protocol/segment_fold.h"

namespace mcast {

// Folds one segment at a time; reusable.
class RackFold {
 public:
  // `contributors`: their greatest number, all of `racks`. All arguments but the number outlive
  // this object; `pool` and `sums` may be the same.
  RackFold(uint32_t contributors, const Racks& racks, BufferPool& pool, BufferPool& sums);
  ~RackFold();
  RackFold(RackFold&&) noexcept = default;
  RackFold& operator=(RackFold&&) = delete;

  // Begins the next segment; as SegmentFold::begin(). With racks `run` contains all contributors:
  // in each rack they follow each other as in the run. `only`: folds that rack alone; partial() is
  // its sum.
  void begin(const FoldRule& rule, const FoldRun& run, size_t bytes, std::byte* accumulator,
             std::optional<uint32_t> only = {});

  // As SegmentFold::add().
  bool add(uint32_t contributor, double factor, ConstBytes contribution);
  // The sum of a rack, in elements of the accumulator. Returns false, without effect, if the length
  // is wrong, the rack is not folded here, or a part of the rack has arrived already.
  bool add_rack(uint32_t rack, ConstBytes sum);

  // As in SegmentFold; excuse() only without racks: a rack could have no contributor left.
  bool excuse(uint32_t contributor);
  void divide_by(uint32_t divisor) { rule_.divisor = divisor; }

  bool in_turn(uint32_t contributor) const;
  bool complete() const;
  // Requires complete(); as SegmentFold::finish().
  void finish(std::byte* out) const;
  ConstBytes partial() const { return {accumulator_, rule_.accumulator_bytes(bytes_)}; }

 private:
  struct Rack {
    SegmentFold fold;
    std::vector<std::byte> sum;  // its accumulator, unless it is the first
    bool given = false;          // its sum has arrived in one piece
    bool begun = false;          // a part of it has arrived
  };

  void begin_rack(uint32_t rack, const FoldRun& run, std::byte* accumulator);
  bool ready(const Rack& rack) const { return rack.given || rack.fold.complete(); }
  // Takes the sums that are ready and in turn.
  void combine();
  void fold_sum(const std::byte* sum);
  void give_back(Rack& rack);

  const Racks* racks_;
  BufferPool* sums_;
  FoldRule rule_;
  size_t bytes_ = 0;
  std::byte* accumulator_ = nullptr;
  std::optional<uint32_t> only_;
  uint32_t combined_ = 0;    // racks whose sums are in the accumulator
  std::vector<Rack> folds_;  // by rack
};

}  // namespace mcast
