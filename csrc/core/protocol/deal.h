// Assigns each segment of a reduction to an executor, which folds it: a station, or the segment's
// owner. All ranks and stations compute the same assignment from the same facts, so it needs no
// messages. Pure.
//
// Every shard (an owner's block) is assigned separately, in shares that hold at every prefix: of
// the first i segments of a shard an executor has its share of i, give or take less than one. So
// all executors get work from the start, and the final prefix of a block grows while the operation
// runs. A shard that is too short for all stations goes to those that have the least of the shards
// before it; ties between stations are broken by rendezvous hashing.
//
// Memory: 2 bytes for each segment of the vector (4 to 60 KiB); for each station a quarter byte for
// each segment of a shard.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/types.h"

namespace mcast {

struct DealShape {
  struct Station {
    uint64_t id = 0;      // hash of its address and thread
    uint32_t weight = 0;  // share of the vector, in kWhole
    bool leaf = false;    // of a tree: it gets no segments here (leaf_deal.h)
  };
  static constexpr uint32_t kWhole = 65536;

  uint64_t tag = 0;                // the group's
  std::vector<uint32_t> segments;  // by owner: number in its shard
  std::vector<Station> stations;   // sum of weights: at most kWhole; owners get the rest
};

class Deal {
 public:
  // A shard is assigned to so few stations that each can get at least this many segments.
  static constexpr uint32_t kLeastOfAStation = 4;
  static constexpr uint16_t kOwner = 0xffff;

  // Requires fewer than kOwner stations, and fewer than 2^32 segments in all.
  explicit Deal(const DealShape& shape);
  // Upper bound of the memory for shards of this many segments; SIZE_MAX: that or more.
  static size_t most_bytes(uint64_t segments, size_t owners, size_t stations);

  uint32_t owners() const { return static_cast<uint32_t>(segments_.size()); }
  uint32_t segments(Member owner) const { return segments_[owner]; }
  // The station that folds segment `segment` of `owner`'s shard, or kOwner.
  uint16_t executor(Member owner, uint32_t segment) const {
    return executors_[size_t{segment} * owners() + owner];
  }

  // An entry of a station's list: the segments that it folds, in the order in which contributors
  // send them: by segment, then by owner, starting with another owner in each row, so that the
  // first of a row are not always the same owners'. Numbered from 0.
  struct Entry {
    Member owner;
    uint32_t segment;
    bool operator==(const Entry&) const = default;
  };
  uint32_t length(uint16_t station) const { return lengths_[station]; }
  // `number` < length(station). O(log segments + kStride x owners), as number_of().
  Entry entry(uint16_t station, uint32_t number) const;
  // Calls fn(entry, station) for all segments that stations fold, in the order of their lists.
  template <typename Fn>
  void for_each(Fn&& fn) const {
    for (uint32_t row = 0; row < rows_; row++) {
      for (uint32_t place = 0; place < owners(); place++) {
        const Member owner = at(row, place);
        if (const uint16_t j = executor(owner, row); j != kOwner) fn(Entry{owner, row}, j);
      }
    }
  }
  // The entry's number in its station's list; nothing: its owner folds it, or it does not exist.
  std::optional<uint32_t> number_of(const Entry& entry) const;

  // Stations in the order that breaks ties between shares, for `owner`'s shard.
  static std::vector<uint16_t> ranking(uint64_t tag, Member owner,
                                       std::span<const DealShape::Station> stations);
  // The stations of a ranking, in its order, that fold a shard of `segments`, if stations have been
  // assigned `given` segments of the shards before it.
  static std::vector<uint16_t> takers(std::vector<uint16_t> ranking, uint32_t segments,
                                      std::span<const DealShape::Station> stations,
                                      std::span<const uint64_t> given);

 private:
  static constexpr uint32_t kStride = 16;  // rows between two notes of the lists' lengths

  void deal_shard(const DealShape& shape, Member owner, std::vector<uint64_t>& given);
  // The owner at place `place` of row `segment`.
  Member at(uint32_t segment, uint32_t place) const {
    return static_cast<Member>((segment + place) % owners());
  }
  uint32_t& noted(uint16_t station, uint32_t segment) {
    return noted_[segment / kStride * lengths_.size() + station];
  }
  uint32_t noted(uint16_t station, uint32_t segment) const {
    return noted_[segment / kStride * lengths_.size() + station];
  }

  std::vector<uint32_t> segments_;
  uint32_t rows_ = 0;
  std::vector<uint16_t> executors_;  // by segment, then by owner
  std::vector<uint32_t> lengths_;    // by station
  // Per kStride-th row and station: number of entries in the rows before.
  std::vector<uint32_t> noted_;
};

}  // namespace mcast
