// One lane of a group whose ranks share this host: a HostCore, the thread that currently drives it,
// and the watch over the peers it waits for.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/patience.h"
#include "shm/core.h"
#include "shm/inbox.h"
#include "shm/peer_watch.h"
#include "shm/shared.h"

namespace mcast {

class HostLane : private HostPort {
 public:
  // `registry` outlives this. `on_failure` runs once, on whichever thread drives, before the
  // operations learn of the failure. So do callbacks of posts, after the driver's turn, in which
  // the lane is still driven: they may post, close and let go of the lane, which whoever calls
  // run(), help() or turn() holds.
  //
  // `patience`: how a thread in help() waits.
  HostLane(HostParams params, Nanos liveness_limit, Patience patience,
           std::shared_ptr<HostShared> shared, PeerRegistry& registry,
           std::shared_ptr<Counters> counters, std::function<void(const Status&)> on_failure);
  ~HostLane() override;

  // Any thread. enqueue() keeps the order of its calls; run() then does all work that needs no
  // wait, and leaves the rest to a waiting caller or to the host thread. Running out of memory
  // while the lane is driven ends the process, on any driving thread: the lane's state would be
  // unknown, and ranks that wait for it would find its process alive.
  void enqueue(Post post);
  void enqueue(MessagePost post);
  //
  // `awaited`: an operation for which the caller calls help() at once, so nobody is woken for what
  // comes until then. If it does not, the host thread looks at its next tick.
  void run(std::optional<Sequence> awaited = {}) noexcept;
  // What an operation in flight waits for may have come (Region::set_readable). Any thread.
  void look_again();

  // The calling thread drives until `done()` returns true, or until `until`. Returns false if
  // another thread drives, or nothing is in flight here: the caller should sleep by itself.
  bool help(const std::function<bool()>& done, Nanos until) noexcept;

  // Host thread: runs a turn, if no other thread drives. Returns when the next is due (kNever:
  // nothing is in flight).
  Nanos turn();

  // Fails the group here and on all ranks. Any thread.
  void fail(const Status& why, Member culprit);
  // Leaves when nothing is in flight; at `deadline`, or immediately if `force`, operations in
  // flight fail on all ranks. `done` runs once, on the driving thread.
  using Closed = std::function<void(const Status&)>;
  void close(Nanos deadline, bool force, Closed done);

 protected:
  // Runs between arming and letting go, when peers may ring a lane that is still driven: a hook for
  // tests that act as a peer.
  virtual void letting_go() {}
  // Gives the core to another thread that wants one. A test's place to act as one.
  virtual void yield_core();

 private:
  // HostPort
  uint64_t place_of(const Slice& slice) override;
  Status read(Member from, uint64_t place, std::byte* to, size_t length) override;
  const std::byte* map(Member from, uint64_t place, size_t length) override;
  void wake(Member member, HostWaiter waiter) override;
  void wake_all() override;
  Nanos now() override { return clock_(); }

  bool try_lock() { return !driven_.exchange(true, std::memory_order_seq_cst); }
  void ring_driver();
  enum class Next : uint8_t { kThread, kCaller };
  void unlock(bool left_over, Next next);
  void drain();
  void advance(bool large, bool& left_over);
  bool sleeps_next(Nanos now);
  void deliver();
  void watch(Nanos now);
  void serve_closing(Nanos now);

  const HostParams params_;
  const std::shared_ptr<HostShared> shared_;
  PeerRegistry& registry_;
  HostThread& thread_;
  const HostClock clock_;
  const std::shared_ptr<Counters> counters_;
  // References to the ranges that others have published, by rank: held while they are read.
  std::vector<std::shared_ptr<const void>> held_;
  const std::function<void(const Status&)> on_failure_;
  LaneInbox inbox_;

  // The host thread found the lane driven when it wanted to run a turn: the driver must ensure that
  // work which arrived since the needs were armed is not left unhandled.
  std::atomic<bool> refused_{false};

  std::atomic<bool> driven_{false};  // the thread that sets it owns the following fields
  HostCore core_;
  PeerWatch watch_;
  Patience patience_;
  bool told_ = false;          // the listener knows of the failure
  LaneInbox::Mail mail_;       // closings stay until they are served
  Nanos news_until_ = kNever;  // while a close only waits for others to read message notifications
  Status closing_outcome_;     // of operations in flight at the end
};

}  // namespace mcast
