// The sources with most refusals, in fixed memory: the space-saving sketch (Metwally, Agrawal, El
// Abbadi, ICDT 2005) over sets of a few places. A seeded hash of its address assigns a source to a
// set, so no outsider can target the places of another. In a full set a new source replaces the one
// with the lowest count and inherits its count, so a count is never too small, and too large by at
// most `inherited`.
//
// Not thread-safe. The cost of a call is bounded for any input: it examines one set.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/refusal.h"
#include "base/rng.h"
#include "base/types.h"

namespace mcast {

class SourceTable {
 public:
  static constexpr size_t kPlaces = 256, kWays = 8;

  struct Row {
    Source source;
    uint64_t total = 0, inherited = 0;
    std::array<uint64_t, kCauses> causes{};
    // The last reported count of each cause, and the time of the report.
    std::array<uint64_t, kCauses> told{};
    std::array<Nanos, kCauses> told_at{};
    uint64_t count(Cause cause) const { return causes[static_cast<size_t>(cause)]; }
  };

  explicit SourceTable(uint64_t seed) : seed_(seed), rows_(kPlaces) {}

  // Ports are those of the last message: a source is a host.
  Row& note(Source source, Cause cause) {
    Row& row = place(source);
    row.source.port = source.port;
    ++row.total;
    ++row.causes[static_cast<size_t>(cause)];
    return row;
  }

  // The rows with the highest counts, at most `n`.
  std::vector<Row> top(size_t n) const {
    std::vector<Row> found;
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(found),
                 [](const Row& row) { return row.total > 0; });
    std::sort(found.begin(), found.end(), [](const Row& a, const Row& b) {
      return a.total != b.total ? a.total > b.total : a.source.address < b.source.address;
    });
    if (found.size() > n) found.resize(n);
    return found;
  }

 private:
  Row& place(Source source) {
    const size_t set = hash_of(source.address, seed_) % (kPlaces / kWays) * kWays;
    Row* least = &rows_[set];
    for (size_t i = set; i < set + kWays; ++i) {
      if (rows_[i].total > 0 && rows_[i].source.address == source.address) return rows_[i];
      if (rows_[i].total < least->total) least = &rows_[i];
    }
    const uint64_t inherited = least->total;
    *least = Row{};
    least->source = source;
    least->total = least->inherited = inherited;
    return *least;
  }

  const uint64_t seed_;
  std::vector<Row> rows_;
};

}  // namespace mcast
