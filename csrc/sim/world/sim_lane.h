// A lane in a simulated world, with the loop of the real one (runtime/lane_loop.h). It gets a turn
// when data has arrived for it, when a stream or its interface has room again, when a command has
// arrived or when its deadline has passed, and at no other time: so a late deadline or a missing
// wake-up shows up as a failure.
//
// Threads: one. A lane outlives its use by groups.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "runtime/lane_driver.h"
#include "runtime/lane_loop.h"
#include "sim/network/sim_network.h"
#include "sim/world/sim_clock.h"

namespace mcast::sim {

// CPU costs of a host, all in ns of the world.
struct LaneCosts {
  Nanos wake = 20 * kMicro;  // from the event that wakes a sleeping thread to its turn
  Nanos turn = 2 * kMicro;   // of a thread, for one turn
  double per_datagram = 0;   // received
  Nanos command = 0;         // longest delay between another thread's command and its arrival
};

class SimLane final : public LaneDriver {
 public:
  // `number`: id of its turns at the network (SimNetwork::turn_at). All arguments but the endpoint
  // outlive the lane.
  SimLane(SimNetwork& network, uint32_t number, const SimClock& clock, const LaneCosts& costs,
          std::unique_ptr<SimTransport> endpoint, LaneAccounts accounts, uint64_t seed);

  bool push(Command command) override;
  bool call(const Command& command) override;
  void close_group(uint64_t tag, Nanos deadline, bool force, Closed done) override;
  Transport& transport() override { return loop_.lane().transport(); }
  const std::string& description() const override { return description_; }

  Lane& lane() { return loop_.lane(); }
  SimTransport& endpoint() { return endpoint_; }
  // Runs a turn if one is due now; a planned turn that was superseded is ignored. Returns true if
  // it ran.
  bool on_turn();
  void on_news();
  // A paused process gets no turns.
  void pause(bool paused);
  // Must be called when the clock has changed.
  void look_again() { plan(network_.now() + costs_.wake); }
  // The process ends: either in order (pending operations are completed or fail because the engine
  // shut down), or it is killed, and no code of it runs any more.
  void end();
  void kill();

  // The longest run of consecutive turns that found nothing to do although the deadline had passed.
  uint64_t most_spins() const { return most_spins_; }

 private:
  struct Arriving {
    Nanos at;
    Command command;
  };
  void plan(Nanos at);
  void rest();

  SimNetwork& network_;
  const uint32_t number_;
  const SimClock& clock_;
  const LaneCosts costs_;
  SimTransport& endpoint_;
  LaneLoop loop_;
  const std::string description_;
  Rng rng_;
  std::deque<Arriving> commands_;
  std::vector<Command> batch_;
  Nanos due_ = kNever;  // the next turn
  // End of the last turn; end of a pause that no event cuts short.
  Nanos free_at_ = 0, deaf_until_ = 0;
  bool paused_ = false, ended_ = false;
  uint64_t spins_ = 0, most_spins_ = 0;
};

}  // namespace mcast::sim
