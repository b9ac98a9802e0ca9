// An exchange in flight at one member: its blocks and their source and destination memory.
#pragma once

#include <algorithm>
#include <vector>

#include "collective/movements/exchange_args.h"
#include "collective/plan.h"
#include "protocol/block_exchange.h"

namespace mcast {

// Most bytes of a block that are sent without a grant: enough to cover the round trip of the grant,
// but less than the whole unasked account.
inline constexpr size_t kMostUnasked = 48u << 10;

class ExchangeRun {
 public:
  // `args` has a slice for each member. `incast`: bytes that a member may have granted to others.
  ExchangeRun(const wire::Descriptor& descriptor, ExchangeArgs args, Member self, size_t incast);

  // Limit on bytes that are granted and not yet received, over all exchanges in flight.
  uint64_t most_outstanding() const { return most_outstanding_; }

  ConstBytes source(const BlockExchange::Piece& piece) const {
    return args_.inputs[piece.to].bytes().subspan(piece.offset, piece.bytes);
  }
  // Returns whether the piece can be read now; inputs may still be copied from a device.
  bool readable(const BlockExchange::Piece& piece) const {
    const Slice& input = args_.inputs[piece.to];
    const uint64_t end = input.offset + piece.offset + piece.bytes;
    return !input.region || end <= input.region->readable();
  }
  bool complete() const { return machine.all_sent() && machine.all_here(); }
  std::byte* destination(Member from) const { return args_.outputs[from].data(); }

  // The operation is over: releases the caller's memory.
  void drop_memory() { args_ = {}; }

  BlockExchange machine;
  std::vector<size_t> unasked;  // by member: bytes charged to it (protocol/unasked_account.h)

 private:
  ExchangeArgs args_;
  uint64_t most_outstanding_;
};

}  // namespace mcast
