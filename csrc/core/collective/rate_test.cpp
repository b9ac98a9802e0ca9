// Detects that multicast reaches all members but is slower than unicast.
//
//   1. The top measures the rate of large operations by multicast, because only that matters: raw
//      datagrams would show neither the cost of losses and repair at a rate limiter, nor the
//      limiter's rate once its burst is spent. This sends nothing.
//   2. When such operations have been under way for a second, and are not near the rate of the link
//      (if known), the top begins a cut-over (cutover.h). Operations before it end, later ones
//      wait: repairs of dropped chunks may fill the links and their queues, so that a train among
//      operations would only measure the remaining rate. Then every member sends a train of frames
//      to its ring successor: all at once, as the ring would, on the ring's channel. Each reports
//      the rate at which its predecessor's train arrived; the smallest counts. A train is limited
//      by bytes and by time.
//   3. If unicast is twice as fast, the group changes to the ring. That is a trial: the same
//      operations are measured in the same way, and unless they are a quarter faster the group
//      returns. So late ranks or busy hosts, which make both paths look slow, cost only one trial.
//   4. Tests are ten minutes apart; each failed trial doubles that. A group that has chosen the
//      ring returns as often, to check whether multicast has become faster.
#include "collective/rate_test.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

namespace mcast {
namespace {

constexpr size_t kTrainPiece = 60u << 10;
constexpr size_t kTrainQueue = 256u << 10;
constexpr Nanos kLookAgain = kMilli;  // if the queue is full
constexpr uint32_t kMore = 0, kLast = 1;

std::string megabytes(double rate) {
  char text[32];
  std::snprintf(text, sizeof(text), rate < 10e6 ? "%.2f MB/s" : "%.0f MB/s", rate / 1e6);
  return text;
}

}  // namespace

void RateTest::on_finished(const Operation& op, Nanos now) {
  if (!wanted() || !g_.tree.is_top(g_.self) || op.plan.trivial() || op.post.delegated) return;
  // Bytes that a member receives; for a reduction this includes contributions.
  const uint64_t bytes = static_cast<uint64_t>(op.plan.roots) * op.plan.block * (op.reduce ? 2 : 1);
  const bool ring = g_.path.by_ring(op.post.sequence);
  if (bytes < kLargeBytes || ring != g_.path.on_ring() || (ring && !chose_ring())) return;
  // From the call on, on both paths: late ranks slow both down in the same way.
  meter_.add(bytes, op.post.posted, now);
  if (ring) judge_trial(now);
}

void RateTest::judge_trial(Nanos now) {
  if (!meter_.enough(kTrial) || verdict_ || not_before_ > now) return;
  if (meter_.best() >= kWorthStay * multicast_) {
    not_before_ = kNever;  // the trial is over; PathSwitch returns to multicast when it is due
    return;
  }
  verdict_ = Verdict{false, "the ring moves " + megabytes(meter_.best()) + ", multicast moved " +
                                megabytes(multicast_)};
  rest_ = std::min(2 * rest_, kLongestRest);
  not_before_ = now + rest_;
}

void RateTest::on_change(bool to_ring) {
  meter_ = {};
  if (!to_ring) {
    if (not_before_ == kNever) not_before_ = 0;  // the trial succeeded; multicast is measured anew
    multicast_ = 0;
  }
}

bool RateTest::due(Nanos now) {
  if (!wanted() || round_ || g_.path.on_ring() || now < not_before_ || !meter_.enough(kMeasured)) {
    return false;
  }
  const double link = static_cast<double>(g_.params.multicast.link_rate) / 8;
  not_before_ = now + kRest;
  if (link == 0 || meter_.best() < kNearLink * link) return true;
  meter_ = {};
  return false;
}

void RateTest::begin() {
  g_.counters.add(Counter::rate_tests);
  round_.emplace(Round{++last_round_, 0, kNever, TrainMeter(g_.params.multicast.rate_test),
                       g_.tree.children(g_.self), 0, false, false, false,
                       std::numeric_limits<double>::infinity()});
}

void RateTest::on_cutover(Sequence first) {
  round_->first = first;
  round_->cut = true;
}

void RateTest::drive(Nanos now) {
  if (!round_ || !round_->cut) return;
  if (round_->began == kNever) {
    if (!g_.ops.empty()) return;
    round_->began = next_ = now;
  }
  if (!round_->all_sent && now >= next_) {
    send_train(now);
    report_if_over(now);
  }
  if (!round_) return;
  // A member has left or hangs: operations do not wait for the test.
  const Nanos end = round_->began + kHold;
  if (now >= end) round_.reset();
  next_ = !round_ ? kNever : round_->all_sent ? end : std::min(next_, end);
}

void RateTest::send_train(Nanos now) {
  static const std::vector<std::byte> zeros(kTrainPiece);
  Round& round = *round_;
  const auto to = static_cast<Member>((g_.self + 1u) % g_.size);
  const uint64_t total = g_.params.multicast.rate_test;
  const bool late = now >= round.began + kTrainTime;
  while (!round.all_sent) {
    if (!late && g_.port.queued(to, Channel::kRepair) >= kTrainQueue) {
      next_ = now + kLookAgain;
      return;
    }
    const size_t length = std::min<uint64_t>(kTrainPiece, total - round.sent);
    round.sent += length;
    round.all_sent = late || round.sent >= total;
    g_.send_frame(to, Channel::kRepair, wire::FrameType::kRateTrain, round.number,
                  round.all_sent ? kLast : kMore, {}, ConstBytes(zeros).first(length));
    g_.counters.add(Counter::rate_test_bytes, length);
  }
  next_ = kNever;
}

void RateTest::on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now) {
  using wire::FrameType;
  const auto before = static_cast<Member>((g_.self + g_.size - 1u) % g_.size);
  const bool known = header.type == FrameType::kRate ? g_.tree.is_child(header.member, g_.self)
                                                     : header.member == before;
  if (!known || !wanted()) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (!round_ || header.sequence != round_->number) return;  // of a round that is over here
  if (header.type == FrameType::kRateTrain) on_train(header, body, now);
  if (header.type == FrameType::kRate && round_->children > 0) {
    round_->children--;
    add_rate(1024.0 * header.argument);
  }
  report_if_over(now);
}

void RateTest::on_train(const wire::FrameHeader& header, ConstBytes body, Nanos now) {
  Round& round = *round_;
  if (round.all_here || round.in.got() + body.size() > g_.params.multicast.rate_test) {
    g_.counters.add(Counter::malformed);
    return;
  }
  round.in.on_piece(body.size(), now);
  if (header.argument != kLast) return;
  round.all_here = true;
  add_rate(round.in.rate());
}

void RateTest::add_rate(double rate) { round_->least = std::min(round_->least, rate); }

void RateTest::report_if_over(Nanos now) {
  const Round& round = *round_;
  if (!round.all_sent || !round.all_here || round.children > 0) return;
  const double least = round.least;
  const uint32_t number = round.number;
  round_.reset();
  next_ = kNever;
  if (g_.tree.is_top(g_.self)) return conclude(least, now);
  const double most = std::numeric_limits<uint32_t>::max();
  g_.send_frame(g_.tree.parent(g_.self), Channel::kControl, wire::FrameType::kRate, number,
                static_cast<uint32_t>(std::min(least / 1024, most)));
}

void RateTest::conclude(double unicast, Nanos now) {
  const double multicast = meter_.best();
  meter_ = {};
  if (g_.path.on_ring() || multicast == 0 || unicast < kWorth * multicast) return;
  multicast_ = multicast;
  not_before_ = now;  // the trial is judged as soon as it has measured enough
  verdict_ =
      Verdict{true, "multicast moves " + megabytes(multicast) + ", unicast " + megabytes(unicast)};
}

}  // namespace mcast
