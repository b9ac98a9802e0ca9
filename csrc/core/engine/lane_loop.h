// What a lane does between two sleeps, whoever gives it its turns: commands, one poll, groups that
// are closing. Not thread-safe: its driver owns it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/lane.h"
#include "engine/lane_driver.h"

namespace mcast {

class LaneLoop {
 public:
  // As Lane.
  explicit LaneLoop(std::unique_ptr<Transport> transport, LaneAccounts accounts = {})
      : lane_(std::move(transport), std::move(accounts)) {}

  Lane& lane() { return lane_; }
  const Lane& lane() const { return lane_; }

  // Runs `commands`, which is empty afterwards, and gives the lane a turn. True: at once again.
  bool turn(std::vector<LaneDriver::Command>& commands, Nanos now);
  // When the next turn is due if nothing comes before; kNever: it is not.
  Nanos deadline(Nanos now) const;

  // As LaneDriver's.
  void close_group(uint64_t tag, Nanos deadline, bool force, LaneDriver::Closed done) {
    closing_.push_back({tag, deadline, force, std::move(done)});
  }
  bool closing() const { return !closing_.empty(); }
  // The last turn: commands still run (posts find their group gone and say so), results are
  // delivered, and who waits for a group to close is told that there is nothing any more.
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
