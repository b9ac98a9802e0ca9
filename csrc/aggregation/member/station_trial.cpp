// The fastest batch of a state counts, since late ranks and busy hosts make an operation look
// slower than it is, but never faster. Both states are measured equally long, since the longer a
// state is observed, the faster its fastest batch is.
#include "aggregation/member/station_trial.h"

#include <algorithm>
#include <utility>

namespace mcast {

void StationTrial::reset(Nanos now) {
  *this = StationTrial();
  next_ = now + kFirst;
}

void StationTrial::on_change(bool resting, Nanos now) {
  asked_ = false;
  if (resting == resting_) return;
  resting_ = resting;
  trial_ = !trial_;
  if (!trial_) next_ = now + rest_;
  measure_anew();
}

void StationTrial::measure_anew() {
  busy_ = 0;
  batches_ = 0;
  for (auto& [key, row] : rows_) {
    Measured& m = row[resting_ ? 1 : 0];
    m = {0, 0, 0, shown(m)};
  }
}

void StationTrial::add(const Key& key, bool rested, Nanos begin, Nanos end) {
  const Nanos busy = std::max<Nanos>(0, end - std::max(begin, last_end_));
  last_end_ = std::max(last_end_, end);
  if (rested != resting_) return;  // posted before the change
  const auto at = rows_.find(key);
  if (at == rows_.end() && rows_.size() >= kMostKeys) return;
  Measured& m = (at == rows_.end() ? rows_[key] : at->second)[rested ? 1 : 0];
  busy_ += busy;
  m.batch += busy;
  if (++m.operations % kBatch != 0) return;
  const Nanos average = std::max<Nanos>(1, m.batch / kBatch);
  m.best = m.best == 0 ? average : std::min(m.best, average);
  m.batch = 0;
  batches_++;
}

bool StationTrial::worth() const {
  // In hundredths of nanoseconds, weighted by the number of operations seen in both states.
  double with = 0, without = 0;
  for (const auto& [key, row] : rows_) {
    if (row[0].best == 0 || row[1].best == 0) continue;
    const auto often = static_cast<double>(std::min(row[0].operations, row[1].operations));
    const uint64_t slack = key.scatter ? kScatterSlack : kSlack;
    with += often * static_cast<double>(row[0].best) * 100;
    without += often * static_cast<double>(row[1].best) * static_cast<double>(100 + slack);
  }
  return with <= without;
}

bool StationTrial::wants_change(Nanos now) {
  if (asked_ || !enough()) return false;
  if (!trial_) {
    // Only recent measurements are compared.
    if (now < next_) {
      measure_anew();
      return false;
    }
    return asked_ = true;
  }
  if (worth() == resting_) {
    rest_ = std::min(2 * rest_, kLongestRest);
    return asked_ = true;  // back
  }
  trial_ = false;
  rest_ = kRest;
  next_ = now + rest_;
  measure_anew();
  return false;
}

void StationTrial::put_off(Nanos now) {
  asked_ = false;
  next_ = now + kFirst;
  measure_anew();
}

StationTrial::Times StationTrial::times(const Key& key) const {
  const auto at = rows_.find(key);
  return at == rows_.end() ? Times{} : Times{shown(at->second[0]), shown(at->second[1])};
}

}  // namespace mcast
