// The call determines which members have blocks for each other. In an all_to_all it is every pair
// of members, even if the block is empty, because only the two of them know its length. In a gather
// it is every member and the root, in a scatter the root and every member, unless all blocks are
// empty.
#include "collective/movements/exchange_run.h"

#include <algorithm>
#include <utility>

#include "protocol/early_frames.h"

namespace mcast {
namespace {

enum class Way : uint8_t { kOut, kIn };

std::vector<uint64_t> lengths(const wire::Descriptor& d, const std::vector<Slice>& slices,
                              Member self, Way way) {
  std::vector<uint64_t> out(slices.size(), BlockExchange::kNone);
  // Gathered blocks go to the root, scattered blocks come from it. The root is the only peer of the
  // others on that side.
  const bool one = (d.kind == wire::Kind::kGather) == (way == Way::kOut);
  for (size_t m = 0; m < slices.size(); m++) {
    const bool rooted = one ? m == d.root : self == d.root;
    const bool there = d.kind == wire::Kind::kAllToAll || (rooted && d.bytes > 0);
    if (m != self && there) out[m] = slices[m].length;
  }
  return out;
}

static_assert(kMostUnasked <= kMaxSegment && early_cost(wire::kExchangeHead + kMostUnasked) <=
                                                 EarlyFrames::kMostReductions / 4,
              "a correct member could overflow the store");

// The same at all ranks. All senders together may send half of `incast` unasked, or each a small
// block's worth if that is more.
uint64_t unasked_for(size_t members, size_t incast) {
  return std::clamp<uint64_t>(incast / (2 * members), kUnaskedBlock, kMostUnasked);
}

// Window per sender, divided among the senders that need grants: if they are few, each gets more.
uint64_t window_for(const std::vector<uint64_t>& in, uint64_t unasked, size_t incast) {
  const auto granted = std::count_if(in.begin(), in.end(), [&](uint64_t length) {
    return length != BlockExchange::kNone && length > unasked;
  });
  return std::max<uint64_t>(2 * kMinSegment, incast / static_cast<size_t>(std::max(1l, granted)));
}

BlockExchange machine_for(const wire::Descriptor& d, const ExchangeArgs& args, Member self,
                          size_t incast) {
  const std::vector<uint64_t> in = lengths(d, args.outputs, self, Way::kIn);
  const uint64_t unasked = unasked_for(in.size(), incast);
  return {{self, unasked, kMaxSegment, window_for(in, unasked, incast)},
          lengths(d, args.inputs, self, Way::kOut),
          in};
}

}  // namespace

ExchangeRun::ExchangeRun(const wire::Descriptor& descriptor, ExchangeArgs args, Member self,
                         size_t incast)
    : machine(machine_for(descriptor, args, self, incast)),
      unasked(args.inputs.size()),
      args_(std::move(args)),
      most_outstanding_(std::max<uint64_t>(incast, machine.window())) {}

}  // namespace mcast
