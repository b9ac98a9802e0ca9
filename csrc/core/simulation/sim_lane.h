// A lane in a simulated world, with the loop of the real one (engine/lane_loop.h). It gets a turn
// when something has come for it, when a stream or its interface has room again, when a command has
// arrived or its deadline has come, and at no other time: a deadline that is late or a wake-up that
// is missing shows.
//
// Threads: one. A lane outlives its groups' use of it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/lane_driver.h"
#include "engine/lane_loop.h"
#include "simulation/sim_clock.h"
#include "transport/sim/sim_network.h"

namespace mcast::sim {

// What a host's part of the work takes. All in ns of the world.
struct LaneCosts {
  Nanos wake = 20 * kMicro;  // from what wakes a sleeping thread to its turn
  Nanos turn = 2 * kMicro;   // of a thread, for one turn
  double per_datagram = 0;   // received
  Nanos command = 0;         // most between another thread's command and its arrival
};

class SimLane final : public LaneDriver {
 public:
  // `number`: of its turns, at the network (SimNetwork::turn_at). All but the endpoint outlive the
  // lane.
  SimLane(SimNetwork& network, uint32_t number, const SimClock& clock, const LaneCosts& costs,
          std::unique_ptr<SimTransport> endpoint, LaneAccounts accounts, uint64_t seed);

  bool push(Command command) override;
  bool call(const Command& command) override;
  void close_group(uint64_t tag, Nanos deadline, bool force, Closed done) override;
  Transport& transport() override { return loop_.lane().transport(); }
  const std::string& description() const override { return description_; }

  Lane& lane() { return loop_.lane(); }
  SimTransport& endpoint() { return endpoint_; }
  // Its turn has come, if this is its time and not a former one; true: it had it.
  bool on_turn();
  void on_news();
  // A paused process: no turns.
  void pause(bool paused);
  // The clock has changed.
  void look_again() { plan(network_.now() + costs_.wake); }
  // The process ends: in order (what there is left is delivered or told that the engine is shut
  // down), or it is killed, and nothing of it runs any more.
  void end();
  void kill();

  // Most turns in a row that found nothing to do although its deadline had passed.
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
  Nanos due_ = kNever;                  // the next turn
  Nanos free_at_ = 0, deaf_until_ = 0;  // end of the last turn; of a pause that nothing ends
  bool paused_ = false, ended_ = false;
  uint64_t spins_ = 0, most_spins_ = 0;
};

}  // namespace mcast::sim
