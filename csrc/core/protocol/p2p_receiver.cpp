// The first message taken is granted first, up to a window: half of that must have arrived before
// the sender gets another grant, so that grants are few and no sender waits for one. Credit for the
// accounts is sent when half of one has been refunded: a sender that waits has then used more than
// the half that was not reported, or waits for receives.
#include "protocol/p2p_receiver.h"

#include <algorithm>

namespace mcast {

P2pReceiver::Verdict P2pReceiver::on_head(uint32_t number, uint64_t total, uint64_t bytes) {
  const bool whole = bytes == std::min(params_.unasked, total);
  if (number != next_ || (!whole && bytes != 0)) return Verdict::kBroken;
  if (come_.heads - told_.heads >= params_.heads) return Verdict::kBroken;
  if (come_.bytes - told_.bytes + bytes > params_.account) return Verdict::kBroken;
  next_++;
  come_.heads++;
  come_.bytes += bytes;
  in_.emplace(number, In{total, bytes, bytes, false});
  return Verdict::kTaken;
}

P2pReceiver::Verdict P2pReceiver::take(uint32_t number) {
  In& in = in_.at(number);
  in.taken = true;
  taken_.heads++;
  taken_.bytes += in.here;
  if (in.here == in.total) {
    in_.erase(number);
    return Verdict::kComplete;
  }
  incomplete_++;
  asking_.push_back(number);
  return Verdict::kTaken;
}

P2pReceiver::Verdict P2pReceiver::on_data(uint32_t number, uint64_t offset, uint64_t bytes) {
  const auto found = in_.find(number);
  if (found == in_.end()) return Verdict::kBroken;
  In& in = found->second;
  if (offset != in.here || bytes == 0 || bytes > in.granted - in.here) return Verdict::kBroken;
  in.here += bytes;
  outstanding_ -= bytes;
  if (in.here < in.total) return Verdict::kTaken;
  in_.erase(found);
  incomplete_--;
  return Verdict::kComplete;
}

std::optional<P2pReceiver::Grant> P2pReceiver::grant(uint64_t room) {
  for (const uint32_t number : asking_) {
    In& in = in_.at(number);
    const uint64_t asked = in.granted - in.here;
    if (asked > params_.window / 2) continue;
    const uint64_t left = in.total - in.granted;
    const uint64_t wanted = std::min(params_.window - asked, left);
    const uint64_t step = std::min(wanted, room);
    // Small grants only if nothing would arrive otherwise.
    if (step < std::min(wanted, params_.piece) && outstanding_ > 0) return std::nullopt;
    in.granted += step;
    outstanding_ += step;
    const Grant grant{number, in.granted};
    if (step == left) std::erase(asking_, number);
    return grant;
  }
  return std::nullopt;
}

std::optional<P2pReceiver::Credit> P2pReceiver::credit() {
  const bool heads = 2 * (taken_.heads - told_.heads) >= params_.heads;
  const bool bytes = 2 * (taken_.bytes - told_.bytes) >= params_.account && params_.account > 0;
  if (!heads && !bytes) return std::nullopt;
  told_ = taken_;
  return told_;
}

}  // namespace mcast
