// Measures whether a group's reductions are faster with its stations than without them. The planner
// (placement.h) only predicts that; switches that flood multicast, aggregators that serve several
// jobs and hosts without spare CPU may behave differently. So the top measures: from time to time
// the stations rest for a few operations, and the faster state continues. Pure; time is an
// argument.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>

#include "base/types.h"

namespace mcast {

class StationTrial {
 public:
  // Time of operations under way in each state before it is judged: this, and at least two batches.
  static constexpr Nanos kMeasured = kSecond / 2;
  static constexpr uint32_t kBatch = 4;
  // Time from when the stations are in force to the first trial; then between two trials, doubled
  // after each one that has changed nothing.
  static constexpr Nanos kFirst = 10 * kSecond;
  static constexpr Nanos kRest = 60 * kSecond;
  static constexpr Nanos kLongestRest = 16 * kRest;
  // Percentage by which an all_reduce may be slower with stations; and a reduce_scatter, for which
  // stations relieve the links for other operations, and which the planner allows to be slower.
  static constexpr uint64_t kSlack = 3, kScatterSlack = 12;
  static constexpr size_t kMostKeys = 16;

  // Operations with equal keys can be compared.
  struct Key {
    bool scatter = false;
    uint64_t bytes = 0;
    auto operator<=>(const Key&) const = default;
  };

  // Other stations are in force: they fold, and all is measured again.
  void reset(Nanos now);
  // The change requested by wants_change() is in force.
  void on_change(bool resting, Nanos now);
  // An operation has ended that stations fold, or would fold if they did not rest (`rested`), and
  // that was under way from `begin` on. Ends do not go back.
  void add(const Key& key, bool rested, Nanos begin, Nanos end);
  // Returns true if the stations should rest, if they fold, or fold, if they rest. It then returns
  // false until on_change() or reset().
  bool wants_change(Nanos now);
  bool resting() const { return resting_; }
  // The requested change cannot be made now.
  void put_off(Nanos now);

  // The least time of such an operation, the average of a batch; 0: not measured.
  struct Times {
    Nanos with = 0, without = 0;
  };
  Times times(const Key& key) const;

 private:
  struct Measured {
    uint32_t operations = 0;  // in total
    Nanos batch = 0;          // total time of the operations of the incomplete batch
    Nanos best = 0;           // average of the fastest batch
    Nanos before = 0;         // `best` of the measurement before
  };
  using Row = std::array<Measured, 2>;  // folded, rested

  bool enough() const { return busy_ >= kMeasured && batches_ >= 2; }
  void measure_anew();
  static Nanos shown(const Measured& m) { return m.best != 0 ? m.best : m.before; }
  // Returns true if operations are not slower with stations than without, as far as both were
  // measured.
  bool worth() const;

  bool resting_ = false, asked_ = false;
  bool trial_ = false;  // this state is being tried; else it is the faster one
  Nanos next_ = 0, rest_ = kRest;
  Nanos last_end_ = 0, busy_ = 0;
  uint32_t batches_ = 0;
  std::map<Key, Row> rows_;
};

}  // namespace mcast
