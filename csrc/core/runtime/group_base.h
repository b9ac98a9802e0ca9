// GroupBase: common part of all kinds of groups: argument checks, sequence numbers, and the state
// that posts check. Subclasses carry out the posts.
#pragma once

#include <sys/types.h>

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/coverage.h"
#include "base/lane_id.h"
#include "base/trace.h"
#include "collective/messages.h"
#include "collective/operation.h"
#include "runtime/group.h"

namespace mcast {

class GroupBase : public Group {
 public:
  explicit GroupBase(const GroupSpec& spec);

  // Most operations of a group on one lane: sequences have 32 bits and never wrap.
  static constexpr Sequence kSequences = 0xffff0000u;

  Member rank() const override { return rank_; }
  Member size() const override { return static_cast<Member>(size_); }
  void abort(const std::string& reason) override;
  Status close(Nanos limit) override { return close(limit, false); }
  Status close_in_order(const std::function<bool()>& hurry) override;
  Status give_up(Nanos limit) override { return close(limit, true); }
  Result<Sequence> post(Request request, PostOptions options) override;
  Status post_message(MessageCall call, PostOptions options) override;

  // Posts an operation of the multicast lane as a part of another group's operation. On an error
  // post.done is not called.
  Status post_part(Post post);
  // Sum over both lanes.
  uint64_t count(Counter c) const { return counters_.multicast->get(c) + counters_.reduce->get(c); }
  // Like abort(), for a failure that was found elsewhere.
  void fail_part(const Status& why);
  // The part of fail_part() that also works while the group is being closed: fails the operations
  // in flight.
  void fail_in_flight(const Status& why);
  // close() with the configured limit.
  Status close_with_linger() { return close(config_.linger); }
  // Starts close() without waiting: the future is ready soon after the limit. Used to close many
  // groups at once.
  std::future<Status> start_close(Nanos limit, bool force);
  // Waits for a future of start_close(). Returns false if `hurry`, which may be null, ended the
  // wait.
  static bool await_close(const std::future<Status>& closed, const std::function<bool()>& hurry);
  // Like start_close(), with a callback: `closed` runs once, perhaps during this call.
  void begin_close(Nanos limit, bool force, Completion closed);
  Nanos linger() const { return config_.linger; }
  const std::string& name() const { return name_; }
  const std::string& security() const { return config_.security; }  // setting
  // Most bytes of a block.
  uint64_t longest_block() const { return max_block_; }

  // False in the child of a fork, where every call fails and no lock of the group may be taken:
  // another thread of the parent may have held it.
  bool here() const;

  void on_failure(std::function<void(const Status&)> listener) override {
    state_->listen(std::move(listener));
  }

 protected:
  // Hands the post to the lane, with state_->mutex held. post.sequence is set.
  virtual Status push(LaneId lane, Post post) = 0;
  // Hands over a barrier that goes to both lanes; same conditions. post.sequence is its number on
  // the multicast lane, `reduce_sequence` that on the reduce lane. By default each lane gets a
  // post, and the barrier ends when both have ended.
  virtual Status push_barrier(Post post, Sequence reduce_sequence);
  // Hands over a message if the group carries messages; same conditions.
  virtual Status push_message(MessagePost post);
  // Called after push_message(), with no lock held.
  virtual void pushed_message() {}
  // Called after push(), with no lock held. `awaited`: the operation that was pushed, if the
  // calling thread waits for it right after the post (PostOptions::waited).
  virtual void pushed(LaneId, std::optional<Sequence> awaited) { (void)awaited; }
  // Fails the operations in flight on both lanes, on all ranks; this rank is the culprit.
  virtual void fail_lanes(const Status& why) = 0;
  // Leaves each lane when no operation is in flight there, or at `deadline`. `force`: as for
  // give_up(). `closed` runs once, when both lanes are left.
  virtual void close_lanes(Nanos deadline, bool force, Completion closed) = 0;
  // Whether there are lanes to fail and to close. False in a group of one rank, and before it is
  // open.
  virtual bool has_lanes() const = 0;
  // Whether other processes read the caller's memory directly.
  virtual bool read_by_peers() const { return false; }
  // Whether the lanes copy this rank's block of an all-gather to its place.
  virtual bool copies_own_block() const { return false; }

  // Returns a completion for each of the two lanes: the second call runs `then`, which may be null,
  // with the first error.
  static Completion after_both_lanes(Completion then);

  Status close(Nanos limit, bool force);
  // Takes the group's lock (state_->mutex). The error says why `op` is refused.
  Result<std::unique_lock<std::mutex>> enter(const std::string& op) const;
  // Counters and state, both lanes together.
  GroupStats common_stats() const;
  Nanos now() const { return clock_ ? clock_() : monotonic_now(); }

  const std::string name_;
  const Member rank_;
  const uint32_t size_;
  const Config config_;
  const std::function<Nanos()> clock_;
  const pid_t pid_;
  uint64_t max_block_ = UINT64_MAX;  // bytes; set at creation
  GroupStats fixed_;                 // the part that does not change after creation
  std::shared_ptr<Trace> trace_;
  PerLane<std::shared_ptr<Counters>> counters_{std::make_shared<Counters>(),
                                               std::make_shared<Counters>()};

  // Shared with the lanes' failure listeners, which may outlive a group that could not be closed.
  struct State {
    std::mutex mutex;
    PerLane<Sequence> next;
    bool reduced = false;  // a reduction since the last barrier
    bool closed = false;
    std::string path, reason;  // set when they change after creation

    // Keeps the first failure, and returns true if it is this one. Uses a separate mutex: a posting
    // thread holds `mutex` and may wait for the thread that calls this.
    bool note_failure(const Status& why) {
      std::function<void(const Status&)> listener;
      {
        const std::lock_guard<std::mutex> lock(failing_);
        if (!failure_.ok()) return false;
        failure_ = why;
        listener = std::exchange(listener_, nullptr);
      }
      if (listener) listener(why);
      return true;
    }
    void listen(std::function<void(const Status&)> listener) {
      Status failure;
      {
        const std::lock_guard<std::mutex> lock(failing_);
        failure = failure_;
        if (failure.ok()) listener_ = std::move(listener);
      }
      if (!failure.ok()) listener(failure);
    }
    Status failure() const {
      const std::lock_guard<std::mutex> lock(failing_);
      return failure_;
    }

   private:
    mutable std::mutex failing_;
    Status failure_;
    std::function<void(const Status&)> listener_;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();

 private:
  // Checks of each kind, and the path of a post to its lane: group_posts.cpp.
  class Posting;
  Result<Sequence> take_turn(LaneId lane, Post post);               // state_->mutex held
  Result<Sequence> take_both_turns(Post post);                      // state_->mutex held
  Status check_sequence(const std::string& op, LaneId lane) const;  // state_->mutex held
};

}  // namespace mcast
