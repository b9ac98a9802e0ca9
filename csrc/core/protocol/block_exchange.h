// Blocks from rank to rank, each of them for one rank only: what is sent next and to whom, how far
// others may send, what has come, when all of it is over. The first bytes of a block, `unasked`,
// leave at once, so that a short block takes one step and whoever expects another length finds out;
// the rest leaves as far as the receiver has granted, who bounds what is on its way to it. Each
// block arrives in order. Pure.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/types.h"

namespace mcast {

class BlockExchange {
 public:
  // The length of a block that there is not. (One of 0 bytes is told by an empty piece.)
  static constexpr uint64_t kNone = UINT64_MAX;

  struct Params {
    Member self = 0;
    uint64_t unasked = 1;  // bytes of a block that need no grant; the same at all ranks
    uint64_t piece = 1;    // bytes sent at once, at most; `unasked` or more
    uint64_t window = 1;   // bytes that a rank may have been asked for and that are not here
  };
  // By rank: bytes that go there, and that come from there; kNone at `self`.
  BlockExchange(const Params& params, const std::vector<uint64_t>& out,
                const std::vector<uint64_t>& in);

  // --- sending ---
  struct Piece {
    Member to = 0;
    uint64_t offset = 0, bytes = 0;
    bool unasked = false;
  };
  // The next piece of which `can(piece)` is true, in turn over the ranks, beginning behind the one
  // that had the last; sent() then records it.
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
  // What came of a rank's message.
  enum class Verdict {
    kTaken,
    kOtherLength,  // the block of the two has another length here
    kBroken,       // out of order, beyond its end or what was granted, or there is no block
  };
  // `from`, which expects a block of `total` bytes, has room for it up to byte `end`. Older grants
  // are no news.
  Verdict on_grant(Member from, uint64_t total, uint64_t end);
  bool all_sent() const { return out_left_ == 0; }
  // Of the block for a rank, or kNone.
  uint64_t length_to(Member to) const { return out_[to].length; }

  // --- receiving ---
  // A piece of the block of `total` bytes that `from` sends.
  Verdict accept(Member from, uint64_t total, uint64_t offset, uint64_t bytes);
  // Of the block of a rank, or kNone.
  uint64_t expected(Member from) const { return in_[from].length; }
  bool all_here() const { return in_left_ == 0; }

  // --- granting ---
  struct Grant {
    Member to = 0;
    uint64_t end = 0;
  };
  // The next grant of at most `room` bytes (1 or more), which counts from now on; nothing:
  // all is granted, or what was must come first. A rank that has sent nothing yet is told once.
  std::optional<Grant> grant(uint64_t room);
  // Bytes that were granted and are not here.
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
    // Granted and not here; what needs no grant does not count.
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
  uint32_t to_grant_ = 0;  // blocks of which not all is granted
  uint64_t outstanding_ = 0;
  Member cursor_;  // who had the last piece
  Member asked_;   // and the last grant
};

}  // namespace mcast
