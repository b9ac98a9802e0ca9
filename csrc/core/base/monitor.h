// Counts the data that a lane refuses, by cause and, if requested, by source, and names sources in
// the log: the first refusal of each cause, later ones after a minute with their number, at most
// six lines a minute. Only called for refused data, never for accepted data.
//
// Owned by the lane, used on its thread. Memory is fixed.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/refusal.h"
#include "base/source_table.h"
#include "base/types.h"

namespace mcast {

class Monitor {
 public:
  static constexpr uint64_t kStorm = 10000;  // refusals per second
  static constexpr Nanos kRepeat = 60 * kSecond;
  static constexpr size_t kLines = 6;  // per kRepeat

  // `seed`: unique to this process, so that outsiders cannot predict the table's places.
  void watch_sources(uint64_t seed) { table_ = std::make_unique<SourceTable>(seed); }
  bool watches() const { return table_ != nullptr; }

  void note(Cause cause, Source source, Nanos now);

  uint64_t count(Cause cause) const { return counts_[static_cast<size_t>(cause)]; }
  // None unless sources are watched.
  std::vector<SourceTable::Row> top(size_t n) const {
    return table_ ? table_->top(n) : std::vector<SourceTable::Row>();
  }
  // Lines that were not written because of the limit.
  uint64_t untold() const { return untold_; }

 private:
  void count(Cause cause, Source source, Nanos now);
  bool line_allowed(Nanos now);

  std::array<uint64_t, kCauses> counts_{};
  std::unique_ptr<SourceTable> table_;
  Nanos second_ = 0;        // start of the current second,
  uint64_t in_second_ = 0;  // and the refusals in it
  Nanos minute_ = 0;
  size_t lines_ = 0;  // in the current minute
  uint64_t untold_ = 0;
};

}  // namespace mcast
