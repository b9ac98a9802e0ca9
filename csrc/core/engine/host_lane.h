// One lane of a group whose ranks share this host: a HostCore, whoever drives it now, and the watch
// over the peers it waits for.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collective/host_core.h"
#include "engine/host_hub.h"
#include "transport/shm/segment.h"

namespace mcast {

// What both lanes of a group use: the board and the other ranks' processes.
struct HostShared {
  Segment segment;
  HostBoard board;
  std::vector<std::shared_ptr<const HostPeer>> peers;  // by rank; null for the own
};

class HostLane : private HostPort {
 public:
  HostLane(HostParams params, Nanos liveness_limit, std::shared_ptr<HostShared> shared,
           HostHub& hub, std::shared_ptr<Counters> counters,
           std::function<void(const Status&)> on_failure);
  ~HostLane() override;

  // Any thread. enqueue() keeps the order of its calls; run() then does at once what needs no wait
  // and leaves the rest to whoever waits, or to the host thread.
  void enqueue(Post post);
  void run();
  // What an operation in flight waits for may have come (Region::set_readable). Any thread.
  void look_again();

  // The calling thread drives until `done()`, or until `until`. False: another thread drives, or
  // nothing is in flight here: the caller should sleep on its own.
  bool help(const std::function<bool()>& done, Nanos until);

  // Host thread: a turn, if nobody else drives. Returns when the next is due (kNever: nothing is in
  // flight).
  Nanos turn();

  // Fails the group here and on all ranks. Any thread.
  void fail(const Status& why, Member culprit);
  // Leaves when nothing is in flight; at `deadline`, or at once if `force`, what is in flight fails
  // on all ranks. `done` runs once, on whichever thread drives.
  using Closed = std::function<void(const Status&)>;
  void close(Nanos deadline, bool force, Closed done);

 protected:
  // Runs between arming and letting go, where peers may ring a lane that is still driven: a test's
  // place to act as one.
  virtual void letting_go() {}

 private:
  // HostPort
  Status read(Member from, uint64_t address, std::byte* to, size_t length) override;
  void wake(Member member, HostWaiter waiter) override;
  void wake_all() override;
  Nanos now() override;

  bool try_lock() { return !driven_.exchange(true, std::memory_order_seq_cst); }
  void ring_driver();
  void unlock_armed(bool left_over);
  void drain();
  void advance(bool large, bool& left_over);
  void look_at_failure();
  void watch(Nanos now);
  void serve_closing(Nanos now);

  const HostParams params_;
  const Nanos liveness_limit_;
  const std::shared_ptr<HostShared> shared_;
  HostHub& hub_;
  HostThread& thread_;
  const std::shared_ptr<Counters> counters_;
  const std::function<void(const Status&)> on_failure_;
  const bool spins_;

  std::mutex inbox_mutex_;
  std::vector<Post> inbox_;
  std::vector<std::pair<Status, Member>> failures_;
  struct Closing {
    Nanos deadline;
    bool force;
    Closed done;
  };
  std::vector<Closing> leaving_;
  std::atomic<bool> mail_{false};  // one of these is not empty, or look_again()

  // The host thread found the lane driven when it was to take a turn: whoever drives sees to it
  // that nothing which came since the needs were armed is left lying.
  std::atomic<bool> refused_{false};

  std::atomic<bool> driven_{false};  // who sets it owns what follows
  HostCore core_;
  bool told_ = false;  // the listener knows of the failure
  std::vector<Closing> closing_;
  Status closing_outcome_;  // of what was in flight at the end
  std::vector<Post> posts_;
  Nanos watched_ = 0;
  // By member: what was asked, and for how long there has been no answer.
  struct Silence {
    uint64_t asked = 0;
    Nanos at = 0;     // when it was asked
    Nanos total = 0;  // without an answer
  };
  std::vector<Silence> silence_;
};

}  // namespace mcast
