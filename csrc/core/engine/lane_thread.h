// The thread that drives one lane: commands from other threads, poll, sleep until something
// happens.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/lane_id.h"
#include "base/mpsc_queue.h"
#include "engine/lane.h"

namespace mcast {

class LaneThread {
 public:
  // Runs on the lane's thread; must not block.
  using Command = std::function<void(Lane&, Nanos now)>;

  // pin_cpu < 0: not pinned.
  LaneThread(std::unique_ptr<Transport> transport, std::string name, int pin_cpu,
             std::shared_ptr<std::atomic<uint64_t>> arrived = nullptr);
  ~LaneThread() = default;  // only after stop()

  // Any thread. Commands run in the order of the calls of one thread. After stop(): dropped, false.
  bool push(Command command);
  // Runs `command` on the lane's thread and waits for it; false after stop().
  bool call(const Command& command);

  // Removes the group with this tag once it is quiet, or when `deadline` passes (then whatever is
  // in flight fails, on all ranks). `force`: operations that are not over are not waited for, only
  // the confirmation of those that are. `done` gets the outcome, once, usually on the lane's
  // thread.
  using Closed = std::function<void(const Status&)>;
  void close_group(uint64_t tag, Nanos deadline, bool force, Closed done);

  // Says goodbye to the peers (at most `patience`) and ends the thread. Idempotent.
  void stop(Nanos patience);

  // In the child of a fork: closes descriptors; nothing else of this object may be used.
  void abandon_after_fork() noexcept { lane_.transport().abandon_after_fork(); }
  const std::string& description() const { return description_; }
  bool poisoned() const { return lane_.poisoned(); }
  Transport& transport() { return lane_.transport(); }

 private:
  struct Closing {
    uint64_t tag;
    Nanos deadline;
    bool force;
    Closed done;
  };
  void loop();
  void serve_closing(Nanos now);

  Lane lane_;
  std::string name_, description_;
  int pin_cpu_;
  MpscQueue<Command> queue_;
  std::vector<Command> batch_;
  std::vector<Closing> closing_;
  std::atomic<bool> stopping_{false};
  std::atomic<Nanos> stop_deadline_{0};
  std::thread thread_;
};

// Those that a group uses.
using Lanes = PerLane<std::shared_ptr<LaneThread>>;

}  // namespace mcast
