// Counts what a lane refuses, by cause, and, where it is asked to, by source, which it then names
// in the log: the first of each cause, later ones after a minute with their number, six lines a
// minute at most. Only called for what is refused, never for what is taken.
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
  static constexpr uint64_t kStorm = 10000;  // refused in a second
  static constexpr Nanos kRepeat = 60 * kSecond;
  static constexpr size_t kLines = 6;  // in kRepeat

  // `seed`: nobody else's, if sources are to be told apart.
  void watch_sources(uint64_t seed) { table_ = std::make_unique<SourceTable>(seed); }
  bool watches() const { return table_ != nullptr; }

  void note(Cause cause, Source source, Nanos now);

  uint64_t count(Cause cause) const { return counts_[static_cast<size_t>(cause)]; }
  // None unless sources are watched.
  std::vector<SourceTable::Row> top(size_t n) const {
    return table_ ? table_->top(n) : std::vector<SourceTable::Row>();
  }
  // Lines that were not written, since there were enough.
  uint64_t untold() const { return untold_; }

 private:
  void count(Cause cause, Source source, Nanos now);
  bool line_allowed(Nanos now);

  std::array<uint64_t, kCauses> counts_{};
  std::unique_ptr<SourceTable> table_;
  Nanos second_ = 0;        // when the running one began,
  uint64_t in_second_ = 0;  // and what was refused in it
  Nanos minute_ = 0;
  size_t lines_ = 0;  // in that minute
  uint64_t untold_ = 0;
};

}  // namespace mcast
