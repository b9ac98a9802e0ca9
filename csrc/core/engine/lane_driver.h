// What drives a lane, as groups see it: a thread of its own (engine/lane_thread.h), or a simulation
// that gives it turns in virtual time.
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
  // Runs where the lane runs; must not block.
  using Command = std::function<void(Lane&, Nanos now)>;
  using Closed = std::function<void(const Status&)>;

  virtual ~LaneDriver() = default;

  // Any thread. Commands run in the order of the calls of one thread. After the lane's end:
  // dropped, false.
  virtual bool push(Command command) = 0;
  // Runs `command` where the lane runs and waits for it; false after the lane's end.
  virtual bool call(const Command& command) = 0;
  // Removes the group with this tag once it is quiet, or when `deadline` passes (then whatever is
  // in flight fails, on all ranks). `force`: operations that are not over are not waited for, only
  // the confirmation of those that are. `done` gets the outcome, once, usually where the lane runs.
  virtual void close_group(uint64_t tag, Nanos deadline, bool force, Closed done) = 0;

  // Of a guarded lane (engine/security.h); null: it is none.
  virtual std::shared_ptr<const LaneIdentity> identity() const { return nullptr; }
  virtual Transport& transport() = 0;
  // Of the transport, for people.
  virtual const std::string& description() const = 0;
};

// Those that a group uses.
using Lanes = PerLane<std::shared_ptr<LaneDriver>>;

}  // namespace mcast
