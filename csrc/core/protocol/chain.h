// Order of roots in a large allgather: members 0..P-1 form M chains of contiguous members; in each
// chain one root sends at a time (paper, "sequencer"; here the activation is derived from the
// multicast that every rank receives anyway, so it costs no message). Any P, any M <= P. Pure.
#pragma once

#include <algorithm>

#include "base/types.h"

namespace mcast {

class Chains {
 public:
  Chains(uint32_t members, uint32_t chains)
      : members_(members), chains_(std::clamp<uint32_t>(chains, 1, members)) {}

  uint32_t chains() const { return chains_; }
  // Chain of member m: the first (members % chains) chains are one longer.
  uint32_t chain_of(Member m) const {
    const uint32_t base = members_ / chains_, longer = members_ % chains_;
    const uint32_t in_longer = longer * (base + 1);
    return m < in_longer ? m / (base + 1) : longer + (m - in_longer) / base;
  }
  Member first(uint32_t chain) const {
    const uint32_t base = members_ / chains_, longer = members_ % chains_;
    return static_cast<Member>(chain * base + std::min(chain, longer));
  }
  // One past the last member.
  uint32_t end(uint32_t chain) const { return chain + 1 == chains_ ? members_ : first(chain + 1); }

  // State of the other roots of a chain, in chunks that are not known to be sent.
  struct Ahead {
    uint64_t before = 0;     // of the roots before `self`
    uint64_t under_way = 0;  // of the roots that have started, in any position
    bool started = false;    // one of them has started
  };
  // left(m): chunks of m's block that are not known to be sent; started(m): some are.
  template <typename Left, typename Started>
  Ahead ahead(Member self, Left left, Started started) const {
    const uint32_t chain = chain_of(self), stop = end(chain);
    Ahead seen;
    for (uint32_t i = first(chain); i < stop; i++) {
      const auto m = static_cast<Member>(i);
      if (m == self) continue;
      seen.before += m < self ? left(m) : 0;
      if (!started(m)) continue;
      seen.started = true;
      seen.under_way += left(m);
    }
    return seen;
  }

  // Returns true if the root that sees this may start. `near`: as many chunks may be left of the
  // blocks before; of all together, since short blocks would each be near their end from the start.
  // `may_open`: the chain's first root may start (earlier operations are done). `pass_over`: the
  // roots before it that have not started are late and are skipped.
  static bool my_turn(const Ahead& ahead, uint64_t near, bool may_open, bool pass_over) {
    if (ahead.under_way > near || (ahead.before > near && !pass_over)) return false;
    return may_open || ahead.started;
  }

 private:
  uint32_t members_, chains_;
};

}  // namespace mcast
