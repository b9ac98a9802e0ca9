// How a thread waits for other processes of its host: it spins while each of them has a core, then
// yields its core, then sleeps. A thread that sleeps costs two context switches and tens of
// microseconds; one that yields gives its core to the rank it waits for at once.
//
// sched_yield() gives the core to any thread. If that is one of another program, it returns after a
// whole time slice of some milliseconds: then waits only sleep for a while (the brake), longer each
// time. The brake is a time and not a number of waits, so the share of time that is lost to other
// programs is bounded however short waits are: 2 % at first, 0.1 % when they stay.
//
// Pure: the time is passed in. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/types.h"

namespace mcast {

class Patience {
 public:
  // Since the wait began.
  static constexpr Nanos kSpin = 30 * kMicro;
  static constexpr Nanos kYield = 300 * kMicro;
  // A yield that takes this long went to another program. Ranks of one job return the core within
  // tens of microseconds; a limit of 400 us is passed by several of them in turn.
  static constexpr Nanos kForeign = 1500 * kMicro;
  // Time without yields after such a yield, at first and at most; each one doubles it. After so
  // many waits that yielded without one it is as short as at first.
  static constexpr Nanos kFirstBrake = 200 * kMilli;
  static constexpr Nanos kLongestBrake = 5 * kSecond;
  static constexpr uint32_t kForgiven = 2000;

  enum class Step : uint8_t { kSpin, kYield, kSleep };
  // What happened for the first time in the current wait; for the counters.
  enum class News : uint8_t { kNone, kYields, kBraked };
  struct Next {
    Step step;
    News news;
  };

  // `yields` is false with wait=sleep.
  explicit Patience(bool yields) : yields_(yields) {}

  // Returns what to do next when a look at `now` found nothing to do. `progress` is any number that
  // changes when a look does find something, which ends the wait. `core_each`: every rank of the
  // job on this host can have a core of its own.
  Next next(Nanos now, uint64_t progress, bool core_each) {
    if (began_ == kNever || progress != progress_) begin(now, progress);
    const Nanos waited = now - began_;
    if (core_each && waited < kSpin) return {Step::kSpin, News::kNone};
    if (!yields_ || waited >= kYield) return {Step::kSleep, News::kNone};
    if (way_ == Way::kYields) return {Step::kYield, News::kNone};
    if (way_ == Way::kSleeps) return {Step::kSleep, News::kNone};
    if (now < braked_until_) {
      way_ = Way::kSleeps;
      return {Step::kSleep, News::kBraked};
    }
    way_ = Way::kYields;
    return {Step::kYield, News::kYields};
  }

  // A yield is over, at `now`, and took this long.
  void on_yield(Nanos now, Nanos took) {
    if (took < kForeign) return;
    braked_until_ = now + brake_;
    brake_ = std::min(2 * brake_, kLongestBrake);
    good_ = 0;
    way_ = Way::kSleeps;
  }

  // The wait is over: the thread has slept, or has what it waited for.
  void end() {
    if (way_ == Way::kYields && ++good_ == kForgiven) {
      brake_ = kFirstBrake;
      good_ = 0;
    }
    way_ = Way::kOpen;
    began_ = kNever;
  }

 private:
  enum class Way : uint8_t { kOpen, kYields, kSleeps };

  void begin(Nanos now, uint64_t progress) {
    end();
    began_ = now;
    progress_ = progress;
  }

  const bool yields_;
  Way way_ = Way::kOpen;   // of the current wait
  Nanos began_ = kNever;   // it; kNever: there is none
  uint64_t progress_ = 0;  // when it began
  Nanos braked_until_ = 0;
  Nanos brake_ = kFirstBrake;
  uint32_t good_ = 0;  // waits that yielded to ranks of the job, since the brake
};

}  // namespace mcast
