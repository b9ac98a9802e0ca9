// RateTest: whether unicast would move the group's large operations faster than multicast does,
// where multicast reaches everybody but is slow: gateways of clouds limit what one multicast flow
// may carry. A part of PathSwitch, which acts on what it says.
//
// Threads: the lane's.
#pragma once

#include <optional>
#include <string>

#include "collective/group_context.h"
#include "protocol/rate_meter.h"

namespace mcast {

class RateTest {
 public:
  explicit RateTest(GroupContext& context) : g_(context) {}

  // Of every operation that has ended well, before its memory is given back.
  void on_finished(const Operation& op, Nanos now);
  // At the top, on multicast: a test is due, for which a line is to be drawn.
  bool due(Nanos now);
  // A line is being drawn, all ranks begin the same test; it is drawn before `first`. Operations
  // from there on wait until the own train and the predecessor's are over; trains begin when those
  // before it are complete everywhere.
  void begin();
  bool waits_for_line() const { return round_ && !round_->drawn; }
  void on_line(Sequence first);
  bool holds(Sequence sequence) const {
    return round_ && round_->drawn && sequence >= round_->first && !round_->over();
  }
  bool under_way() const { return round_.has_value(); }
  void stop() {
    round_.reset();
    next_ = kNever;
  }
  // Sends what can be sent of the own train.
  void drive(Nanos now);
  Nanos deadline() const {
    return round_ && round_->drawn && round_->began == kNever && g_.ops.empty() ? 0 : next_;
  }
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);

  struct Verdict {
    bool to_ring = false;
    std::string why;
  };
  // At the top, once for each: the path is to be changed.
  std::optional<Verdict> take_verdict() { return std::exchange(verdict_, std::nullopt); }
  // The path has changed, for whatever reason.
  void on_change(bool to_ring);
  // At the top: the group is on the ring because that is faster.
  bool chose_ring() const { return multicast_ > 0; }

  static constexpr uint64_t kLargeBytes = 1u << 20;  // of operations that are measured
  static constexpr Nanos kMeasured = kSecond;        // of them under way, before a test
  static constexpr Nanos kTrial = kSecond / 4;       // on the ring, before that is judged
  static constexpr Nanos kTrainTime = 100 * kMilli;  // of a train, at most
  static constexpr Nanos kHold = 2 * kSecond;        // of a test, from its train on
  static constexpr Nanos kRest = 600 * kSecond;  // between two tests; doubles with a failed trial
  static constexpr Nanos kLongestRest = 16 * kRest;
  static constexpr double kWorth = 2;         // times that unicast must be faster for a trial
  static constexpr double kWorthStay = 1.25;  // times that the ring must be faster then
  static constexpr double kNearLink = 0.75;   // of the link's rate: nothing to be gained

 private:
  // One comparison, as this member takes part in it.
  struct Round {
    uint32_t number;
    Sequence first;  // operation behind the line
    Nanos began;     // the own train; kNever: it waits for operations before the line
    TrainMeter in;
    uint32_t children;  // that have not reported
    uint64_t sent = 0;
    bool all_sent = false, all_here = false, drawn = false;
    double least = 0;  // bytes per second, of the subtree
    bool over() const { return all_sent && all_here; }
  };

  bool wanted() const { return g_.params.multicast.rate_test > 0; }
  void send_train(Nanos now);
  void on_train(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  void add_rate(double rate);
  void report_if_over(Nanos now);
  void conclude(double unicast, Nanos now);
  void judge_trial(Nanos now);

  GroupContext& g_;
  RateMeter meter_;       // of the path in use, at the top
  double multicast_ = 0;  // what it moved when the ring was chosen; 0: it was not, or is over
  Nanos not_before_ = 0, rest_ = kRest;
  uint32_t last_round_ = 0;
  std::optional<Round> round_;
  Nanos next_ = kNever;
  std::optional<Verdict> verdict_;
};

}  // namespace mcast
