// NoData: operations that only wait until all members have made the same call: barriers, and those
// whose data other groups carry.
//
// Threads: the lane's.
#pragma once

#include "collective/movement.h"

namespace mcast {

class NoData final : public Movement {
 public:
  void start(Operation&, Nanos) override {}
  bool pump(Operation&, Nanos, bool) override { return false; }
  bool busy(const Operation&) const override { return false; }
  bool complete(const Operation& op) const override {
    return !op.post.delegated || op.post.delegated->load(std::memory_order_acquire);
  }
  bool until_released(const Operation&) const override { return true; }
};

}  // namespace mcast
