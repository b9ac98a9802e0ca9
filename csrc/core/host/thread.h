// The thread of one lane that drives this process's groups of one host while no caller does.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "host/mailbox.h"

namespace mcast {

class HostLane;

// The time, from above: monotonic, nanoseconds. Any thread.
using HostClock = Nanos (*)();

// Between looks at peers that are waited for, and at limits.
inline constexpr Nanos kHostTick = 100 * kMilli;

// Sleeps for good when nothing has been posted for a while.
class HostThread {
 public:
  // `mailbox`: this process's; it outlives the thread.
  HostThread(HostMailbox& mailbox, size_t lane, HostClock clock);
  Status start();
  void add(const std::shared_ptr<HostLane>& lane);
  void remove(const HostLane* lane);
  // Something was posted: its limits are to be watched. Any thread; cheap while the thread is warm.
  void warm_up();
  // Look at the lanes now. Any thread.
  void ring();
  // Tells those who ask that this process is there (lane 0; on lane 1 nothing). Any thread.
  void answer();
  void stop();

 private:
  void loop();
  HostMailbox& mailbox_;
  const size_t lane_;
  const HostClock clock_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HostLane>> lanes_;
  std::atomic<bool> warm_{true}, stopping_{false};
  std::thread thread_;
};

}  // namespace mcast
