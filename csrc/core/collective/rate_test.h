// RateTest: finds out whether unicast would move the group's large operations faster than
// multicast. Gateways of clouds, for example, forward multicast to all members, but limit the rate
// of a multicast flow. Part of PathSwitch, which acts on the verdict.
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

  // Called for every operation that has ended well, before its memory is returned.
  void on_finished(const Operation& op, Nanos now);
  // Top member, on multicast: returns true if a test is due, which needs a cut-over.
  bool due(Nanos now);
  // begin(): a cut-over is pending and all ranks begin the same test. on_cutover(): the cut-over is
  // set before `first`. Operations from `first` on wait until our train and the predecessor's are
  // over; trains begin when the operations before `first` are complete everywhere.
  void begin();
  bool waits_for_cutover() const { return round_ && !round_->cut; }
  void on_cutover(Sequence first);
  bool holds(Sequence sequence) const {
    return round_ && round_->cut && sequence >= round_->first && !round_->over();
  }
  bool under_way() const { return round_.has_value(); }
  void stop() {
    round_.reset();
    next_ = kNever;
  }
  // Sends as much of our train as possible now.
  void drive(Nanos now);
  Nanos deadline() const {
    return round_ && round_->cut && round_->began == kNever && g_.ops.empty() ? 0 : next_;
  }
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);

  struct Verdict {
    bool to_ring = false;
    std::string why;
  };
  // Top member: returns each verdict once. The path is to be changed.
  std::optional<Verdict> take_verdict() { return std::exchange(verdict_, std::nullopt); }
  // The path has changed, for any reason.
  void on_change(bool to_ring);
  // Top member: true if the group is on the ring because the ring is faster.
  bool chose_ring() const { return multicast_ > 0; }

  static constexpr uint64_t kLargeBytes = 1u << 20;  // least size of operations that are measured
  static constexpr Nanos kMeasured = kSecond;        // time of such operations before a test
  static constexpr Nanos kTrial = kSecond / 4;       // time on the ring before it is judged
  static constexpr Nanos kTrainTime = 100 * kMilli;  // most time of a train
  static constexpr Nanos kHold = 2 * kSecond;        // most time of a test, from its train on
  // Between two tests; doubles with each failed trial.
  static constexpr Nanos kRest = 600 * kSecond;
  static constexpr Nanos kLongestRest = 16 * kRest;
  static constexpr double kWorth = 2;         // speed-up by unicast that justifies a trial
  static constexpr double kWorthStay = 1.25;  // speed-up that the trial must show
  // Share of the link's rate that leaves no room for improvement.
  static constexpr double kNearLink = 0.75;

 private:
  // This member's part of one comparison.
  struct Round {
    uint32_t number;
    Sequence first;  // first operation after the cut-over
    Nanos began;     // start of our train; kNever: earlier operations are not over
    TrainMeter in;
    uint32_t children;  // children that have not reported
    uint64_t sent = 0;
    bool all_sent = false, all_here = false, cut = false;
    double least = 0;  // bytes per second, lowest of the subtree
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
  RateMeter meter_;  // of the path in use, at the top
  // Rate of multicast when the ring was chosen; 0: the ring was not chosen for its rate.
  double multicast_ = 0;
  Nanos not_before_ = 0, rest_ = kRest;
  uint32_t last_round_ = 0;
  std::optional<Round> round_;
  Nanos next_ = kNever;
  std::optional<Verdict> verdict_;
};

}  // namespace mcast
