// The thread of one lane that drives this process's groups of one host while no caller drives them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "shm/mailbox.h"

namespace mcast {

class HostLane;

// The current time, provided by the caller: monotonic, nanoseconds. Any thread.
using HostClock = Nanos (*)();

// Interval between checks of awaited peers and of limits.
inline constexpr Nanos kHostTick = 100 * kMilli;

// Sleeps without a limit when nothing has been posted for a while.
class HostThread {
 public:
  // `mailbox`: this process's; it outlives the thread.
  HostThread(HostMailbox& mailbox, size_t lane, HostClock clock);
  Status start();
  void add(const std::shared_ptr<HostLane>& lane);
  void remove(const HostLane* lane);
  // An operation was posted whose limits must be watched. Any thread; cheap while the thread is
  // warm.
  void warm_up();
  // Makes the thread look at the lanes now. Any thread.
  void ring();
  // Replies to questions whether this process is there (lane 0; does nothing on lane 1). Any
  // thread.
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
