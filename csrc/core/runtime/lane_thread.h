// The thread that drives one lane: it runs commands from other threads, polls, and sleeps until an
// event occurs.
#pragma once

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/mpsc_queue.h"
#include "runtime/lane_driver.h"
#include "runtime/lane_loop.h"

namespace mcast {

class LaneThread final : public LaneDriver {
 public:
  // pin_cpu < 0: not pinned.
  LaneThread(std::unique_ptr<Transport> transport, std::string name, int pin_cpu,
             LaneAccounts accounts = {});
  ~LaneThread() override = default;  // only after stop()

  bool push(Command command) override;
  bool call(const Command& command) override;
  void close_group(uint64_t tag, Nanos deadline, bool force, Closed done) override;

  // Closes the connections to the peers in order (at most `patience`) and ends the thread.
  // Idempotent.
  void stop(Nanos patience);

  // In the child of a fork: closes descriptors; no other member may be used afterwards.
  void abandon_after_fork() noexcept { loop_.lane().transport().abandon_after_fork(); }
  const std::string& description() const override { return description_; }
  bool poisoned() const { return loop_.lane().poisoned(); }
  Transport& transport() override { return loop_.lane().transport(); }
  // Call before any other thread has the lane.
  void set_identity(std::shared_ptr<const LaneIdentity> identity) {
    identity_ = std::move(identity);
  }
  std::shared_ptr<const LaneIdentity> identity() const override { return identity_; }

 private:
  void run();

  LaneLoop loop_;
  std::shared_ptr<const LaneIdentity> identity_;
  std::string name_, description_;
  int pin_cpu_;
  MpscQueue<Command> queue_;
  std::vector<Command> batch_;
  std::atomic<bool> stopping_{false};
  std::atomic<Nanos> stop_deadline_{0};
  std::thread thread_;
};

}  // namespace mcast
