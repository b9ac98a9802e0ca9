// Pieces are sent round-robin to the ranks that can accept data, starting with the next rank, so
// that different ranks send to different ones at any moment. Grants are issued round-robin as well:
// half a window must have arrived before a rank gets a new grant, so that grants are few and no
// sender waits for one.
#include "protocol/block_exchange.h"
#include "base/coverage.h"

namespace mcast {

BlockExchange::BlockExchange(const Params& params, const std::vector<uint64_t>& out,
                             const std::vector<uint64_t>& in)
    : params_(params), out_(out.size()), in_(in.size()), cursor_(params.self), asked_(params.self) {
  for (size_t m = 0; m < out.size(); m++) {
    if (out[m] != kNone) {
      out_[m] = {out[m], 0, 0, false};
      out_left_++;
    }
    if (in[m] == kNone) continue;
    in_[m] = {in[m], 0, 0, false};
    in_left_++;
    to_grant_ += in[m] > params_.unasked ? 1 : 0;
  }
}

std::optional<BlockExchange::Piece> BlockExchange::piece_for(Member to) const {
  const Out& o = out_[to];
  if (o.over) return std::nullopt;
  Piece piece{to, o.sent, 0, false};
  if (o.sent < o.granted) {
    piece.bytes = std::min(params_.piece, o.granted - o.sent);
  } else if (o.sent == 0) {
    piece.bytes = std::min(params_.unasked, o.length);
    piece.unasked = true;
  } else {
    return std::nullopt;
  }
  return piece;
}

void BlockExchange::sent(const Piece& piece) {
  Out& o = out_[piece.to];
  o.sent += piece.bytes;
  cursor_ = piece.to;
  if (o.sent < o.length) return;
  o.over = true;
  out_left_--;
}

BlockExchange::Verdict BlockExchange::on_grant(Member from, uint64_t total, uint64_t end) {
  Out& o = out_[from];
  if (o.length == kNone || end > total) return Verdict::kBroken;
  if (total != o.length) return Verdict::kOtherLength;
  o.granted = std::max(o.granted, end);
  return Verdict::kTaken;
}

BlockExchange::Verdict BlockExchange::accept(Member from, uint64_t total, uint64_t offset,
                                             uint64_t bytes) {
  In& block = in_[from];
  if (block.length == kNone) return Verdict::kBroken;
  if (total != block.length) return Verdict::kOtherLength;
  // Only the single piece of an empty block may be empty.
  if (block.over || offset != block.here || (bytes == 0) != (total == 0)) return Verdict::kBroken;
  const uint64_t most = std::min(total, std::max(block.granted, params_.unasked));
  if (bytes > most - offset) return Verdict::kBroken;
  const uint64_t before = block.outstanding(params_.unasked);
  block.here += bytes;
  outstanding_ -= before - block.outstanding(params_.unasked);
  if (block.here < total) return Verdict::kTaken;
  block.over = true;
  in_left_--;
  return Verdict::kTaken;
}

std::optional<BlockExchange::Grant> BlockExchange::grant(uint64_t room) {
  const auto count = static_cast<Member>(in_.size());
  for (uint32_t i = 1; to_grant_ > 0 && i <= count; i++) {
    const auto m = static_cast<Member>((asked_ + i) % count);
    In& block = in_[m];
    if (block.over || std::max(block.granted, params_.unasked) >= block.length) continue;
    if (block.granted > 0 && block.here == 0) continue;
    const uint64_t asked = block.outstanding(params_.unasked);
    if (asked > params_.window / 2) continue;
    const uint64_t from = std::max(block.granted, params_.unasked);
    const uint64_t left = block.length - from;
    const uint64_t wanted = std::min(params_.window - asked, left);
    const uint64_t step = std::min(wanted, room);
    // Small grants only if nothing would arrive otherwise.
    if (step < std::min(wanted, params_.piece) && outstanding_ > 0) {
      MCAST_COVER(grant_too_small);
      return std::nullopt;
    }
    block.granted = from + step;
    outstanding_ += step;
    if (step == left) to_grant_--;
    asked_ = m;
    return Grant{m, block.granted};
  }
  return std::nullopt;
}

}  // namespace mcast
