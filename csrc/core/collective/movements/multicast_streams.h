// MulticastStreams: blocks that their roots multicast, with credit (multicast.h), repair (repair.h)
// and, where a device writes to memory, placing (placing.h).
//
// Threads: the lane's.
#pragma once

#include "collective/movement.h"
#include "collective/movements/multicast.h"
#include "collective/movements/placing.h"
#include "collective/movements/repair.h"
#include "collective/path_switch.h"
#include "collective/reception.h"
#include "collective/small_operations.h"
#include "collective/source_auth.h"

namespace mcast {

class MulticastStreams final : public Movement {
 public:
  // All outlive this.
  struct Parts {
    GroupContext& context;
    SmallOperations& small;
    SourceAuth& sources;
    PathSwitch& path;
    Placing& placing;
    Reception& reception;
    Repair& repair;
    Multicast& multicast;
  };
  explicit MulticastStreams(const Parts& parts) : parts_(parts) {}

  void start(Operation& op, Nanos now) override;
  bool pump(Operation& op, Nanos now, bool drained) override;
  bool busy(const Operation& op) const override;
  Nanos deadline(const Operation& op) const override;
  bool complete(const Operation& op) const override;
  void on_complete(Operation& op, Nanos now) override { parts_.path.judge(op, now); }
  bool until_released(const Operation& op) const override { return !op.plan.small; }
  void drop_memory(Operation& op) override { parts_.sources.end(op); }
  bool settled(const Operation& op) const override;
  void give_back(const Operation& op) override { parts_.small.give_back(op.own.kept.size()); }

 private:
  const Parts parts_;
};

}  // namespace mcast
