// Assigning segments is a scheduling problem: an executor with share w is due its k-th segment (k =
// 0, 1, ...) after segment k / w of the shard and before (k + 1) / w. The next segment goes to the
// executor that is due and has the earliest of these deadlines. With shares that sum to one no
// deadline is ever missed, so no executor is ever a whole segment ahead of or behind its share
// (Pfair scheduling; Baruah et al. 1996). Picking the largest arrears first, which is simpler,
// falls further behind with uneven shares.
//
// Lists are not stored. For each 16th row the current length of each list is noted; the rest is
// counted in the table of executors.
#include "protocol/deal.h"

#include <algorithm>

#include "base/rng.h"

namespace mcast {
namespace {

struct Executor {
  uint16_t who;
  uint64_t weight;
  uint64_t given = 0;

  bool due(uint64_t segments) const { return given * DealShape::kWhole < weight * segments; }
  // The segment by which it must get another one.
  uint64_t end() const { return ((given + 1) * DealShape::kWhole + weight - 1) / weight; }
};

}  // namespace

std::vector<uint16_t> Deal::ranking(uint64_t tag, Member owner,
                                    std::span<const DealShape::Station> stations) {
  std::vector<std::pair<uint64_t, uint16_t>> hashed;
  for (size_t j = 0; j < stations.size(); j++) {
    const uint64_t hash = mix64(tag ^ mix64(uint64_t{owner} << 16 ^ stations[j].id));
    hashed.emplace_back(hash, static_cast<uint16_t>(j));
  }
  std::sort(hashed.begin(), hashed.end());
  std::vector<uint16_t> order;
  for (const auto& [hash, j] : hashed) order.push_back(j);
  return order;
}

size_t Deal::most_bytes(uint64_t segments, size_t owners, size_t stations) {
  const size_t notes = stations * sizeof(uint32_t);
  const size_t row = owners * sizeof(uint16_t) + notes / kStride + 1;
  const size_t first = notes * 4 + owners * 64;  // lengths, the notes of a part of a stride, shards
  size_t sum = 0;
  const bool more =
      __builtin_mul_overflow(segments, row, &sum) || __builtin_add_overflow(sum, first, &sum);
  return more ? SIZE_MAX : sum;
}

Deal::Deal(const DealShape& shape) : segments_(shape.segments), lengths_(shape.stations.size()) {
  for (const uint32_t n : segments_) rows_ = std::max(rows_, n);
  executors_.assign(size_t{rows_} * owners(), kOwner);
  if (lengths_.empty()) return;
  std::vector<uint64_t> given(lengths_.size());
  for (uint32_t m = 0; m < owners(); m++) deal_shard(shape, static_cast<Member>(m), given);
  noted_.resize((rows_ + kStride - 1) / kStride * lengths_.size());
  for (uint32_t row = 0; row < rows_; row++) {
    if (row % kStride == 0) {
      std::copy(lengths_.begin(), lengths_.end(),
                noted_.begin() + static_cast<ptrdiff_t>(row / kStride * lengths_.size()));
    }
    for (uint32_t m = 0; m < owners(); m++) {
      const uint16_t station = executor(static_cast<Member>(m), row);
      if (station != kOwner) lengths_[station]++;
    }
  }
}

std::vector<uint16_t> Deal::takers(std::vector<uint16_t> ranking, uint32_t segments,
                                   std::span<const DealShape::Station> stations,
                                   std::span<const uint64_t> given) {
  std::erase_if(ranking, [&](uint16_t j) { return stations[j].leaf || stations[j].weight == 0; });
  const size_t most = segments / kLeastOfAStation;
  if (ranking.size() <= most) return ranking;
  std::vector<uint16_t> order = ranking;
  std::stable_sort(order.begin(), order.end(), [&](uint16_t a, uint16_t b) {
    return given[a] * stations[b].weight < given[b] * stations[a].weight;
  });
  order.resize(most);
  std::erase_if(ranking, [&order](uint16_t j) {
    return std::find(order.begin(), order.end(), j) == order.end();
  });
  return ranking;
}

// A short shard is shared among its takers instead of all stations.
void Deal::deal_shard(const DealShape& shape, Member owner, std::vector<uint64_t>& given) {
  const uint32_t segments = segments_[owner];
  const std::vector<uint16_t> order =
      takers(ranking(shape.tag, owner, shape.stations), segments, shape.stations, given);
  uint64_t all = 0, used = 0;
  for (const DealShape::Station& s : shape.stations) all += s.weight;
  for (const uint16_t j : order) used += shape.stations[j].weight;
  if (used == 0) return;
  std::vector<Executor> executors;
  uint64_t left = DealShape::kWhole;
  for (const uint16_t j : order) {
    const uint64_t weight = shape.stations[j].weight * all / used;
    if (weight > 0) executors.push_back({j, weight});
    left -= weight;
  }
  if (left > 0) executors.push_back({kOwner, left});
  for (uint32_t segment = 0; segment < segments; segment++) {
    Executor* next = nullptr;
    for (Executor& e : executors) {
      if (e.due(uint64_t{segment} + 1) && (next == nullptr || e.end() < next->end())) next = &e;
    }
    next->given++;
    if (next->who != kOwner) given[next->who]++;
    executors_[size_t{segment} * owners() + owner] = next->who;
  }
}

Deal::Entry Deal::entry(uint16_t station, uint32_t number) const {
  // The last note that is not beyond the number.
  uint32_t low = 0, high = (rows_ - 1) / kStride;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (noted(station, middle * kStride) <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  uint32_t left = number - noted(station, low * kStride);
  for (uint32_t row = low * kStride;; row++) {
    for (uint32_t place = 0; place < owners(); place++) {
      const Member owner = at(row, place);
      if (executor(owner, row) == station && left-- == 0) return {owner, row};
    }
  }
}

std::optional<uint32_t> Deal::number_of(const Entry& entry) const {
  if (entry.owner >= owners() || entry.segment >= segments_[entry.owner]) return {};
  const uint16_t station = executor(entry.owner, entry.segment);
  if (station == kOwner) return {};
  uint32_t number = noted(station, entry.segment);
  const uint32_t from = entry.segment / kStride * kStride;
  number += static_cast<uint32_t>(std::count(executors_.begin() + size_t{from} * owners(),
                                             executors_.begin() + size_t{entry.segment} * owners(),
                                             station));
  for (uint32_t place = 0; at(entry.segment, place) != entry.owner; place++) {
    number += executor(at(entry.segment, place), entry.segment) == station;
  }
  return number;
}

}  // namespace mcast
