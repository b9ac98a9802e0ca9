// Loss detection of one stream. Inside one (root, path) datagrams keep their order but for batches
// that overtake, so a hole further back than the tolerance is a loss at once. Two kinds of holes
// are left to the cutoff timer: those within the tolerance, and a lost tail, which no later
// datagram reveals. After the last progress the timer waits for the chunks that are still announced
// at the measured rate plus alpha (paper, section on the cutoff timer; here additive and re-armed).
// It only fires after an empty poll of the socket, so that a descheduled process does not see
// losses that are not there. Each hole is reported once; from then on the fetch client owns it.
#include "protocol/block_receiver.h"

#include <algorithm>

namespace mcast {

void BlockReceiver::on_position(Chunk sent, Nanos now) {
  sent = std::min(sent, chunks());
  if (sent > announced_) {
    announced_ = sent;
    last_ = now;
  }
}

void BlockReceiver::report(Chunk end, std::vector<ChunkRange>& lost) {
  Chunk at = scanned_;
  while (at < end) {
    const auto first = static_cast<Chunk>(have_.next_clear(at, end));
    if (first >= end) break;
    const auto stop = static_cast<Chunk>(have_.next_set(first, end));
    lost.push_back({first, stop});
    lost_ += stop - first;
    at = stop;
  }
  scanned_ = std::max(scanned_, end);
}

void BlockReceiver::detect(Nanos now, bool drained, std::vector<ChunkRange>& lost,
                           bool& cutoff_fired) {
  if (have_.full()) return;
  if (seen_end_ > scanned_ + params_.tolerance) report(seen_end_ - params_.tolerance, lost);
  if (drained && now >= deadline()) {
    const size_t before = lost.size();
    report(announced_, lost);
    cutoff_fired = cutoff_fired || lost.size() > before;
  }
}

Nanos BlockReceiver::deadline() const {
  if (have_.full() || scanned_ >= announced_) return kNever;
  scanned_ = static_cast<Chunk>(have_.next_clear(scanned_, announced_));
  if (scanned_ >= announced_) return kNever;
  const Nanos per_chunk = arrivals_ > 1 ? (last_ - first_) / static_cast<Nanos>(arrivals_) : 0;
  // Announced but late chunks may be in flight; a slow measured rate must not delay repair
  // indefinitely.
  constexpr Nanos kMost = 50 * kMilli;
  const Nanos in_flight = std::min(std::min(per_chunk, kMost) * (announced_ - scanned_), kMost);
  return last_ + params_.alpha + in_flight;
}

}  // namespace mcast
