// A thread of a simulated process, other than a lane: it gets a turn when an event has arrived for
// it or when the time that it requested has come, and at no other time.
//
// Threads: one.
#pragma once

#include <memory>

#include "sim/network/sim_network.h"
#include "sim/world/sim_clock.h"
#include "sim/world/sim_lane.h"
#include "sim/world/sim_security.h"

namespace mcast::sim {

class SimThread;

// Owner of the threads' endpoints, which calls on_news() and on_turn().
class SimThreads {
 public:
  virtual ~SimThreads() = default;
  virtual SimNetwork& network() = 0;
  // Attaches a stream endpoint at a host; its events go to this thread.
  virtual std::unique_ptr<SimTransport> attach(HostId host, SimThread& thread) = 0;
  virtual void forget(SimThread& thread) = 0;
  virtual SimSecurity& security() = 0;  // the world's
};

class SimThread {
 public:
  // Attaches its own endpoint before its first turn. All arguments outlive it.
  SimThread(SimThreads& all, const SimClock& clock, const LaneCosts& costs)
      : all_(all), clock_(clock), costs_(costs) {}
  virtual ~SimThread() { all_.forget(*this); }
  SimThread(const SimThread&) = delete;
  SimThread& operator=(const SimThread&) = delete;

  // Data has arrived, or another thread has work for it.
  void on_news();
  // Runs a turn if one is due now; a planned turn that was superseded is ignored. Returns true if
  // it ran.
  bool on_turn();
  // While paused, it gets no turns.
  void pause(bool paused);
  // The process is killed.
  void kill() { killed_ = true; }
  bool killed() const { return killed_; }
  // Must be called when the clock has changed.
  void look_again() { on_news(); }

 protected:
  SimThreads& threads() { return all_; }
  Nanos shown() const { return clock_.at(all_.network().now()); }
  // From now on its turns are planned under the number of this endpoint.
  void run_as(const SimTransport& endpoint) { number_ = static_cast<uint32_t>(endpoint.index()); }
  bool runs() const { return number_ != kNone; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Runs one turn; returns when the next one is due, by its clock: `now` for immediately, kNever
  // for none.
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
