// LaneDriver: drives a lane for its groups. Either a separate thread (runtime/lane_thread.h), or a
// simulation that polls the lane in virtual time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/lane_id.h"
#include "base/status.h"
#include "base/types.h"
#include "transport/transport.h"

namespace mcast {

class Lane;
class LaneIdentity;

class LaneDriver {
 public:
  // Runs in the lane's context; must not block.
  using Command = std::function<void(Lane&, Nanos now)>;
  using Closed = std::function<void(const Status&)>;

  virtual ~LaneDriver() = default;

  // Any thread. Commands of one thread run in the order of its calls. After the lane's end the
  // command is dropped and false is returned.
  virtual bool push(Command command) = 0;
  // Runs `command` in the lane's context and waits for it. Returns false after the lane's end.
  virtual bool call(const Command& command) = 0;
  // Removes the group with this tag once it is quiet, or when `deadline` passes (then operations in
  // flight fail, on all ranks). `force`: does not wait for unfinished operations, only for the
  // confirmation of finished ones. `done` gets the outcome, once, usually in the lane's context.
  virtual void close_group(uint64_t tag, Nanos deadline, bool force, Closed done) = 0;

  // Identity of a guarded lane (runtime/security.h); null if the lane is not guarded.
  virtual std::shared_ptr<const LaneIdentity> identity() const { return nullptr; }
  virtual Transport& transport() = 0;
  // Describes the transport, for users.
  virtual const std::string& description() const = 0;
};

// The pair of lanes used by one group.
using Lanes = PerLane<std::shared_ptr<LaneDriver>>;

}  // namespace mcast
