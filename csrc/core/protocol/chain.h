// Turn-taking of a large allgather: members 0..P-1 form M chains of contiguous members; in each
// chain one root sends at a time (paper, "sequencer"; here the activation is what every rank sees
// on the multicast itself, so it costs no message). Any P, any M <= P. Pure.
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

  // Whether root `self` may start. started(m), ended(m): what is seen of m's stream ("ended": near
  // its end); may_open: the chain's first root may start (earlier operations are out of the way);
  // skip(m): m is known to be late (has not posted), so its turn passes on.
  template <typename Started, typename Ended, typename Skip>
  bool my_turn(Member self, bool may_open, Started started, Ended ended, Skip skip) const {
    const uint32_t chain = chain_of(self);
    const Member begin = first(chain);
    const uint32_t stop = end(chain);
    bool any_started = false;
    for (uint32_t i = begin; i < stop; i++) {
      const auto m = static_cast<Member>(i);
      if (m == self) continue;
      if (started(m)) {
        any_started = true;
        if (!ended(m)) return false;  // the chain's turn is taken
      }
    }
    // Everybody before me has ended or is being passed over.
    for (uint32_t i = begin; i < self; i++) {
      const auto m = static_cast<Member>(i);
      if (!ended(m) && !skip(m)) return false;
    }
    return may_open || any_started;
  }

 private:
  uint32_t members_, chains_;
};

}  // namespace mcast
