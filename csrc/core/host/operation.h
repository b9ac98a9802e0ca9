// An operation in flight among ranks of one host, at one of them.
#pragma once

#include <algorithm>
#include <vector>

#include "collective/operation.h"
#include "host/plan.h"

namespace mcast {

struct HostOperation {
  Post post;
  HostPlan plan;
  uint64_t first = 0;      // its first round, once that is published
  uint32_t published = 0;  // rounds, of this rank
  uint32_t consumed = 0;
  // By member, in the round to be consumed: its header was seen and names the same call; its slot
  // was taken. Only what has been compared is taken, whatever has been published since.
  std::vector<bool> agreed, taken;
  Nanos deadline = kNever;
  Nanos first_byte = kNever, last_byte = kNever;

  bool in_slot = false;  // exchange: our blocks are, so that our memory is not lent

  // all_reduce in slots: spans whose own part is folded, and the last such part.
  uint32_t folded = 0;
  std::vector<std::byte> part;
  // Direct: by member, where its input is (reduce_scatter: what it has for this rank).
  struct Source {
    uint64_t place;
    double factor;
  };
  std::vector<Source> sources;

  // Only what the root publishes is waited for.
  bool takes_from_root() const {
    return post.descriptor.kind == wire::Kind::kBroadcast ||
           (post.descriptor.kind == wire::Kind::kScatter &&
            plan.algorithm == HostAlgorithm::kExchange);
  }
  bool all_agree() const { return std::find(agreed.begin(), agreed.end(), false) == agreed.end(); }
};

}  // namespace mcast
