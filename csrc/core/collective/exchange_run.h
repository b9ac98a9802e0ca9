// An exchange in flight at one member: its blocks, from which memory, into which.
#pragma once

#include <algorithm>
#include <vector>

#include "collective/exchange_args.h"
#include "collective/plan.h"
#include "protocol/block_exchange.h"

namespace mcast {

// Bytes of a block that leave at once, at most: so many that their way hides that of the grant, and
// not all that the account has.
inline constexpr size_t kMostUnasked = 48u << 10;

class ExchangeRun {
 public:
  // `args` have a slice for each member. `incast`: bytes that a member may have asked others for.
  ExchangeRun(const wire::Descriptor& descriptor, ExchangeArgs args, Member self, size_t incast);

  // That may be granted and not here, of all exchanges in flight.
  uint64_t most_outstanding() const { return most_outstanding_; }

  ConstBytes source(const BlockExchange::Piece& piece) const {
    return args_.inputs[piece.to].bytes().subspan(piece.offset, piece.bytes);
  }
  // Whether it can be read: inputs may still be on their way here.
  bool readable(const BlockExchange::Piece& piece) const {
    const Slice& input = args_.inputs[piece.to];
    const uint64_t end = input.offset + piece.offset + piece.bytes;
    return !input.region || end <= input.region->readable();
  }
  bool complete() const { return machine.all_sent() && machine.all_here(); }
  std::byte* destination(Member from) const { return args_.outputs[from].data(); }

  // The operation is over: lets go of the caller's memory.
  void drop_memory() { args_ = {}; }

  BlockExchange machine;
  std::vector<size_t> unasked;  // by member: what was charged to it (protocol/unasked_account.h)

 private:
  ExchangeArgs args_;
  uint64_t most_outstanding_;
};

}  // namespace mcast
