// One iteration of a lane, whatever drives it: commands, one poll, groups that are closing. Not
// thread-safe: its driver owns it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/lane.h"
#include "runtime/lane_driver.h"

namespace mcast {

class LaneLoop {
 public:
  // Arguments as in Lane.
  explicit LaneLoop(std::unique_ptr<Transport> transport, LaneAccounts accounts = {})
      : lane_(std::move(transport), std::move(accounts)) {}

  Lane& lane() { return lane_; }
  const Lane& lane() const { return lane_; }

  // Runs `commands`, which is empty afterwards, and polls the lane. Returns true if it must be
  // called again at once.
  bool turn(std::vector<LaneDriver::Command>& commands, Nanos now);
  // Time of the next turn() if no event occurs before; kNever: none is due.
  Nanos deadline(Nanos now) const;

  // As in LaneDriver.
  void close_group(uint64_t tag, Nanos deadline, bool force, LaneDriver::Closed done) {
    closing_.push_back({tag, deadline, force, std::move(done)});
  }
  bool closing() const { return !closing_.empty(); }
  // The last iteration: commands still run (posts find that their group is gone and fail), results
  // are delivered, and callers that wait for a group to close are notified that the lane has ended.
  void end(std::vector<LaneDriver::Command>& commands, Nanos now);

 private:
  struct Closing {
    uint64_t tag;
    Nanos deadline;
    bool force;
    LaneDriver::Closed done;
  };
  void run(std::vector<LaneDriver::Command>& commands, Nanos now);
  void serve_closing(Nanos now);

  Lane lane_;
  std::vector<Closing> closing_;
};

}  // namespace mcast
