// Whether a group's reductions are faster with its stations than without them. The planner
// (placement.h) promises; switches that flood multicast, aggregators that serve several jobs and
// hosts without CPU to spare keep other promises. So the top measures: from time to time the
// stations rest for a few operations, and what was faster goes on. Pure; time is an argument.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>

#include "base/types.h"

namespace mcast {

class StationTrial {
 public:
  // Of operations under way, in each state, before that is judged: this, and two batches at least.
  static constexpr Nanos kMeasured = kSecond / 2;
  static constexpr uint32_t kBatch = 4;
  // From when the stations are in force to the first trial; then between two, twice as long after
  // each one that has changed nothing.
  static constexpr Nanos kFirst = 10 * kSecond;
  static constexpr Nanos kRest = 60 * kSecond;
  static constexpr Nanos kLongestRest = 16 * kRest;
  // So much slower, per cent, an all_reduce may be with stations; a reduce_scatter, which they
  // relieve the links for other operations, as the planner allows it to be.
  static constexpr uint64_t kSlack = 3, kScatterSlack = 12;
  static constexpr size_t kMostKeys = 16;

  // Operations that can be compared.
  struct Key {
    bool scatter = false;
    uint64_t bytes = 0;
    auto operator<=>(const Key&) const = default;
  };

  // Other stations are in force: they fold, and all is measured anew.
  void reset(Nanos now);
  // What wants_change() has asked for is in force.
  void on_change(bool resting, Nanos now);
  // An operation has ended that stations fold, or would if they did not rest (`rested`), which was
  // under way from `begin` on. Ends do not go back.
  void add(const Key& key, bool rested, Nanos begin, Nanos end);
  // The stations should rest where they fold, or fold where they rest. Once asked it waits for
  // on_change() or reset().
  bool wants_change(Nanos now);
  bool resting() const { return resting_; }
  // It cannot be done now.
  void put_off(Nanos now);

  // The least time of such an operation, the average of a batch; 0: it was not measured.
  struct Times {
    Nanos with = 0, without = 0;
  };
  Times times(const Key& key) const;

 private:
  struct Measured {
    uint32_t operations = 0;  // in all
    Nanos batch = 0;          // time of those of the batch that is not full
    Nanos best = 0;           // average of the fastest batch
    Nanos before = 0;         // what that was, when it was last measured
  };
  using Row = std::array<Measured, 2>;  // folded, rested

  bool enough() const { return busy_ >= kMeasured && batches_ >= 2; }
  void measure_anew();
  static Nanos shown(const Measured& m) { return m.best != 0 ? m.best : m.before; }
  // With stations it is not slower than without, as far as both were measured.
  bool worth() const;

  bool resting_ = false, asked_ = false;
  bool trial_ = false;  // this state is tried; else it is the one that was faster
  Nanos next_ = 0, rest_ = kRest;
  Nanos last_end_ = 0, busy_ = 0;
  uint32_t batches_ = 0;
  std::map<Key, Row> rows_;
};

}  // namespace mcast
