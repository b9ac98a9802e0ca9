// Applies the faults of a plan to a world, each at its time, and reverts those that end. If faults
// of one kind overlap, the one that began last is in force.
// Threads: one.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "sim/swarm/plan.h"
#include "sim/world/world.h"

namespace mcast::sim {

class Faults {
 public:
  struct Events {
    std::function<void(uint32_t rank)> resumed;     // the process runs again
    std::function<void(uint32_t rank)> lost;        // it is dead, or will never run again
    std::function<void(const PlannedFault&)> call;  // kAbort, kClose, kExit: calls of the program
  };
  // All arguments outlive this object, which outlives the world's last step.
  Faults(const Plan& plan, World& world, Events events);

  // Schedules all faults.
  void begin();
  bool paused(uint32_t rank) const { return paused_[rank] > 0; }
  bool isolated(uint32_t rank) const { return isolated_[rank] > 0; }
  // Reports that the program has performed a fault of its own (kExit, kAbsent).
  void note(FaultKind kind) { began_[static_cast<size_t>(kind)]++; }
  // Kills processes that live but will never be heard again, as their users would.
  void kill_the_lost();
  // The network works normally from now on.
  void end();
  // How often each kind has happened: the number of packets or frames affected, else of faults
  // begun.
  std::array<uint64_t, kFaultKinds> happened() const;

 private:
  void start(size_t fault);
  void stop(size_t fault);
  void pause(uint32_t rank, int change);
  void isolate(uint32_t rank, int change);
  void of_aggregator(const PlannedFault& fault, bool on);
  void mute(const PlannedFault& fault, bool on);
  // Calls `act` with the two endpoints of each stream that the fault affects.
  template <typename Act>
  void each_stream(const PlannedFault& fault, Act act);
  void cut(size_t fault, bool on);
  void reset(const PlannedFault& fault, Nanos later);
  void give_up(size_t fault);
  void delay_links();
  void flap(size_t fault, bool on);
  // Sets the network's current packet faults.
  void apply();
  const PlannedFault* in_force(FaultKind kind) const;
  SimNetwork::Verdict replay(size_t from, size_t to, ConstBytes datagram);
  void flood(size_t fault);
  std::vector<std::byte> noise();
  void hook_frames();
  bool forgets(ConstBytes frame);
  void repeat(size_t from, size_t to, Channel channel, ConstBytes frame);

  const Plan& plan_;
  World& world_;
  const Events events_;
  Rng rng_;
  std::vector<int> paused_, isolated_;             // by rank: number of such faults in force
  std::vector<size_t> active_;                     // in the order in which they began
  std::map<std::pair<size_t, size_t>, int> cuts_;  // by endpoints: number of such faults in force
  std::set<size_t> cutting_;                       // indices of the faults that cut
  std::array<uint64_t, kFaultKinds> began_{};      // or took effect (counts_what_it_does())
  bool repeating_ = false;                         // a repeated frame is being sent
};

}  // namespace mcast::sim
