// An operation in flight among ranks of one host, at one of them.
#pragma once

#include <algorithm>
#include <vector>

#include "collective/operation.h"
#include "shm/plan.h"

namespace mcast {

struct HostOperation {
  Post post;
  HostPlan plan;
  uint64_t first = 0;      // its first round, once it is published
  uint32_t published = 0;  // rounds that this rank has published
  uint32_t consumed = 0;
  // Per member, in the round to be consumed: its header was checked and describes the same call;
  // its slot was taken. Only checked slots are taken, whatever has been published since.
  std::vector<bool> agreed, taken;
  Nanos deadline = kNever;
  Nanos first_byte = kNever, last_byte = kNever;

  bool in_slot = false;  // exchange: this rank's blocks are in its slot, so its memory is not lent

  // all_reduce in slots: number of spans whose own part is folded, and the last such part.
  uint32_t folded = 0;
  std::vector<std::byte> part;
  // Direct operations: by member, the place of its input (reduce_scatter: of its block for this
  // rank).
  struct Source {
    uint64_t place;
    double factor;
  };
  std::vector<Source> sources;

  // Returns true if this rank waits only for the root's slot.
  bool takes_from_root() const {
    return post.descriptor.kind == wire::Kind::kBroadcast ||
           (post.descriptor.kind == wire::Kind::kScatter &&
            plan.algorithm == HostAlgorithm::kExchange);
  }
  bool all_agree() const { return std::find(agreed.begin(), agreed.end(), false) == agreed.end(); }
};

}  // namespace mcast
