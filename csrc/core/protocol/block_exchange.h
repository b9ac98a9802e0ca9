// Blocks from rank to rank, each for one rank only: selects the next piece to send and its
// receiver, limits what others may send, tracks what has arrived, and detects the end. The first
// bytes of a block, `unasked`, are sent at once, so that a short block takes one step and a
// receiver that expects another length notices; the rest is sent as granted by the receiver, which
// limits the bytes under way to it. Each block arrives in order. Pure.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/types.h"

namespace mcast {

class BlockExchange {
 public:
  // The length of a missing block. (A block of 0 bytes is announced by an empty piece.)
  static constexpr uint64_t kNone = UINT64_MAX;

  struct Params {
    Member self = 0;
    uint64_t unasked = 1;  // bytes of a block that need no grant; the same at all ranks
    uint64_t piece = 1;    // bytes sent at once, at most; `unasked` or more
    uint64_t window = 1;   // bytes that a rank may have requested and not received
  };
  // By rank: bytes of the blocks to it, and of those from it; kNone at `self`.
  BlockExchange(const Params& params, const std::vector<uint64_t>& out,
                const std::vector<uint64_t>& in);

  // --- sending ---
  struct Piece {
    Member to = 0;
    uint64_t offset = 0, bytes = 0;
    bool unasked = false;
  };
  // The next piece for which `can(piece)` returns true, round-robin over the ranks, starting after
  // the one that got the last piece; sent() then records it.
  template <typename Can>
  std::optional<Piece> next(Can&& can) const {
    const auto count = static_cast<Member>(out_.size());
    for (uint32_t i = 1; out_left_ > 0 && i <= count; i++) {
      const auto piece = piece_for(static_cast<Member>((cursor_ + i) % count));
      if (piece && can(*piece)) return piece;
    }
    return std::nullopt;
  }
  void sent(const Piece& piece);
  // Result of handling a rank's message.
  enum class Verdict {
    kTaken,
    kOtherLength,  // the block of the two has another length here
    kBroken,       // out of order, beyond its end or the granted bytes, or there is no such block
  };
  // `from`, which expects a block of `total` bytes, has room for it up to byte `end`. Older grants
  // are ignored.
  Verdict on_grant(Member from, uint64_t total, uint64_t end);
  bool all_sent() const { return out_left_ == 0; }
  // Length of the block for a rank, or kNone.
  uint64_t length_to(Member to) const { return out_[to].length; }

  // --- receiving ---
  // Handles a piece of the block of `total` bytes that `from` sends.
  Verdict accept(Member from, uint64_t total, uint64_t offset, uint64_t bytes);
  // Length of the block from a rank, or kNone.
  uint64_t expected(Member from) const { return in_[from].length; }
  bool all_here() const { return in_left_ == 0; }

  // --- granting ---
  struct Grant {
    Member to = 0;
    uint64_t end = 0;
  };
  // The next grant, of at most `room` bytes (1 or more), which is counted from now on; nothing: all
  // is granted, or granted bytes must arrive first. A rank that has sent nothing yet gets one
  // grant.
  std::optional<Grant> grant(uint64_t room);
  // Bytes that were granted and have not arrived.
  uint64_t outstanding() const { return outstanding_; }
  bool all_granted() const { return to_grant_ == 0; }
  uint64_t window() const { return params_.window; }

 private:
  struct Out {
    uint64_t length = kNone, sent = 0, granted = 0;
    bool over = true;
  };
  struct In {
    uint64_t length = kNone, here = 0, granted = 0;
    bool over = true;
    // Granted bytes that have not arrived; unasked bytes are not counted.
    uint64_t outstanding(uint64_t unasked) const {
      const uint64_t asked = std::max(granted, unasked);
      return asked - std::min(asked, std::max(here, unasked));
    }
  };
  std::optional<Piece> piece_for(Member to) const;

  const Params params_;
  std::vector<Out> out_;
  std::vector<In> in_;
  uint32_t out_left_ = 0, in_left_ = 0;
  uint32_t to_grant_ = 0;  // blocks that are not fully granted
  uint64_t outstanding_ = 0;
  Member cursor_;  // receiver of the last piece
  Member asked_;   // receiver of the last grant
};

}  // namespace mcast
