// A thread of a simulated process, other than a lane: it has a turn when something has come for it
// or the time that it asked for has, and at no other time.
//
// Threads: one.
#pragma once

#include <memory>

#include "simulation/sim_clock.h"
#include "simulation/sim_lane.h"
#include "simulation/sim_security.h"
#include "transport/sim/sim_network.h"

namespace mcast::sim {

class SimThread;

// Who has the endpoints of threads, and calls these.
class SimThreads {
 public:
  virtual ~SimThreads() = default;
  virtual SimNetwork& network() = 0;
  // An endpoint at a host, for streams, whose news are this thread's.
  virtual std::unique_ptr<SimTransport> attach(HostId host, SimThread& thread) = 0;
  virtual void forget(SimThread& thread) = 0;
  virtual SimSecurity& security() = 0;  // the world's
};

class SimThread {
 public:
  // Has an endpoint of its own before its first turn. All arguments outlive it.
  SimThread(SimThreads& all, const SimClock& clock, const LaneCosts& costs)
      : all_(all), clock_(clock), costs_(costs) {}
  virtual ~SimThread() { all_.forget(*this); }
  SimThread(const SimThread&) = delete;
  SimThread& operator=(const SimThread&) = delete;

  // Something has come, or another thread has something for it.
  void on_news();
  // Its turn has come, if this is its time and not a former one; true: it had it.
  bool on_turn();
  // No turns meanwhile.
  void pause(bool paused);
  // The process has died.
  void kill() { killed_ = true; }
  bool killed() const { return killed_; }
  // The clock has changed.
  void look_again() { on_news(); }

 protected:
  SimThreads& threads() { return all_; }
  Nanos shown() const { return clock_.at(all_.network().now()); }
  // Turns are its from now on, under the number of this endpoint.
  void run_as(const SimTransport& endpoint) { number_ = static_cast<uint32_t>(endpoint.index()); }
  bool runs() const { return number_ != kNone; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // One turn; when the next is due, `now` for at once, kNever for none. By its clock.
  virtual Nanos act(Nanos now) = 0;
  void plan(Nanos at);

  SimThreads& all_;
  const SimClock& clock_;
  const LaneCosts& costs_;
  uint32_t number_ = kNone;
  Nanos due_ = kNever, free_at_ = 0;
  bool paused_ = false, killed_ = false;
};

}  // namespace mcast::sim
