// A root sends chunks 0..n-1 in order. The first `eager` chunks need no credit; beyond them the end
// is the least of the receivers' limits and of its own window past the least high-water mark. The
// window consists of the chunks that may wait in a switch's queue, and of those measured to be in
// flight besides: the delivery rate times the shortest round trip (BBR's product). It is adapted
// once per window of progress: it shrinks by a fifth when more than one chunk in fifty was lost on
// some path (network congestion; a thin random loss is left to repair alone) and grows by one batch
// otherwise. A sender that stops announces Position{sent} after a short delay, by multicast a few
// times, then once by stream, unless the high-water marks show that all receivers have everything:
// so the loss of the tail of a window or of the whole stream is always detected, and a stream
// without loss costs no extra datagram. The stream is used only with credit: then all have posted
// the operation, so no receiver drops the announcement.
#include "protocol/block_sender.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/coverage.h"

namespace mcast {
namespace {
constexpr uint32_t kCutAbove = 50;  // cut when lost * kCutAbove > chunks of the window
}  // namespace

BlockSender::BlockSender(const SenderParams& params) : params_(params), window_{params.window} {
  params_.widest = std::max(params_.widest, params_.window);
  on_the_way_ = std::min(params_.on_the_way, params_.widest - params_.window);
  window_.size += on_the_way_;
}

Chunk BlockSender::credit_end() const {
  const Chunk eager = std::min(params_.eager, params_.chunks);
  if (!credited_) return eager;
  const uint64_t own = static_cast<uint64_t>(high_water_) + window_.size;
  const uint64_t end = std::min<uint64_t>({own, limit_, params_.chunks});
  return std::max(eager, static_cast<Chunk>(end));
}

ChunkRange BlockSender::take(Chunk max, bool& again, Nanos now) {
  if (!resend_.empty()) {
    again = true;
    const auto [first, end] = *resend_.begin();
    const ChunkRange run{first, first + std::min(end - first, max)};
    resend_.erase(resend_.begin());
    if (run.end < end) resend_.emplace_hint(resend_.begin(), run.end, end);
    return run;
  }
  again = false;
  const Chunk end = allowed_end();
  if (sent_ >= end) return {};
  const ChunkRange run{sent_, sent_ + std::min(end - sent_, max)};  // sent_ + max may not fit
  sent_ = run.end;
  if (under_way_.empty() || under_way_.back().end + params_.quantum / 4 <= run.end) {
    under_way_.push_back({run.end, now});
  }
  announced_ = 0;
  next_position_ = now + patience();
  if (sent_ < params_.chunks && sent_ == credit_end()) stalls_++;
  return run;
}

void BlockSender::put_back(ChunkRange rest, bool again) {
  if (rest.first >= rest.end) return;
  if (again) {
    MCAST_COVER(repetition_put_back);
    resend(rest);
  } else {
    MCAST_COVER(chunk_put_back);
    sent_ = rest.first;
  }
}

void BlockSender::resend(ChunkRange range) {
  range.end = std::min(range.end, sent_);
  if (range.first >= range.end) return;
  // Merges it with the runs that overlap or touch it. O(log n), amortised.
  auto next = resend_.upper_bound(range.first);
  if (next != resend_.begin() && std::prev(next)->second >= range.first) {
    next = std::prev(next);
    range.first = next->first;
  }
  while (next != resend_.end() && next->first <= range.end) {
    range.end = std::max(range.end, next->second);
    next = resend_.erase(next);
  }
  resend_.emplace_hint(next, range.first, range.end);
}

void BlockSender::on_credit(Chunk high_water, Chunk limit, uint32_t lost, Nanos now) {
  if (!std::exchange(credited_, true)) next_position_ = now + patience();
  if (high_water > high_water_) {
    high_water_ = std::min(high_water, params_.chunks);
    learn_gap(now);
    measure(high_water_, now);
    adapt(high_water_, lost, now);
    // Progress: receivers that are behind are still reporting, so the next Position can be delayed.
    if (announced_ == 0) next_position_ = now + patience();
  }
  lost_ = std::max(lost_, lost);
  // The latest limit counts: it shrinks at receivers with more groups that share a socket.
  if (high_water_ <= high_water) limit_ = limit;
}

// Learns the time between two reports while data flows. Gaps caused by a Position do not count:
// they contain the patience itself, which would then grow with every lost tail of a window. If
// reports arrive after an announcement as in a flowing stream, it was announced too early.
void BlockSender::learn_gap(Nanos now) {
  constexpr int kMostEarly = 5;
  if (announced_ == 0) {
    if (growth_.last != 0) growth_.gap.add(now - growth_.last);
    growth_.early = 0;
  } else if (high_water_ < sent_) {
    MCAST_COVER(announced_too_early);
    growth_.early = std::min(growth_.early + 1, kMostEarly);
  }
  growth_.last = now;
}

void BlockSender::measure(Chunk high_water, Nanos now) {
  while (!under_way_.empty() && under_way_.front().end <= high_water) {
    // The last of several batches that a report covers has waited least for it.
    const Nanos trip = now - under_way_.front().at;
    under_way_.pop_front();
    if (under_way_.empty() || under_way_.front().end > high_water) {
      round_trip_ = std::min(round_trip_, trip);
    }
  }
}

void BlockSender::adapt(Chunk high_water, uint32_t lost, Nanos now) {
  if (window_.since == kNever) window_.since = now;
  if (high_water - window_.start < window_.size) return;
  const Chunk covered = high_water - window_.start;
  const Nanos took = now - window_.since;
  const uint32_t newly = lost - std::min(lost, window_.lost);
  // Below one report quantum receivers would have nothing to report, and the stream would stop.
  const Chunk floor =
      std::max<Chunk>({params_.quantum + params_.batch, 2 * params_.batch, params_.window / 8});
  if (static_cast<uint64_t>(newly) * kCutAbove > covered) {
    const Chunk cut = std::max<Chunk>(floor, window_.size - window_.size / 5);
    if (cut == floor) MCAST_COVER(window_at_its_least);
    if (cut < window_.size) {
      window_.size = cut;
      cuts_++;
    }
    on_the_way_ = 0;
  } else if (window_.size < params_.window) {
    window_.size = std::min(params_.window, window_.size + params_.batch);
  } else if (took > 0 && round_trip_ != kNever && window_.start > 0) {
    // Chunks in flight do not queue: this many may be outstanding in addition to those that may
    // queue. As long as the window limits the rate, the value grows with every round; a full link
    // ends that.
    const double rate = static_cast<double>(covered) / static_cast<double>(took);
    const double held = rate * static_cast<double>(round_trip_);
    const Chunk room = params_.widest - params_.window;
    on_the_way_ = held >= static_cast<double>(room) ? room : static_cast<Chunk>(held);
    window_.size = params_.window + on_the_way_;
  }
  window_.start = high_water;
  window_.since = now;
  window_.lost = lost;
}

Nanos BlockSender::patience() const {
  // Between two credit reports a stopped sender merely waits for the next one: on a slow link that
  // takes longer than the default.
  const Nanos flows = std::max(3 * growth_.gap.mean(), params_.position_delay << growth_.early);
  return std::min(flows, std::max(params_.position_delay, params_.position_max / 4));
}

bool BlockSender::unknown() const {
  if (credited_ && high_water_ >= sent_) return false;
  return announced_ < params_.position_multicasts || (credited_ && told_ < sent_);
}

Announce BlockSender::position_due(Nanos now) {
  if (now < next_position_ || !stopped() || !unknown()) return Announce::kNo;
  if (announced_ >= params_.position_multicasts) {
    MCAST_COVER(position_by_stream);
    told_ = sent_;
    return Announce::kStream;
  }
  announced_++;
  next_position_ = now + (params_.position_delay << announced_);
  return Announce::kMulticast;
}

Nanos BlockSender::deadline() const { return stopped() && unknown() ? next_position_ : kNever; }

}  // namespace mcast
