// What groups of every kind have in common: argument checks, sequence numbers, the state that posts
// look at. How a post is carried out is theirs.
#pragma once

#include <sys/types.h>

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/lane_id.h"
#include "base/reach.h"
#include "base/trace.h"
#include "collective/messages.h"
#include "collective/operation.h"
#include "engine/clock.h"
#include "engine/group.h"

namespace mcast {

class GroupBase : public Group {
 public:
  explicit GroupBase(const GroupSpec& spec);

  // Operations of a group on one lane, at most: sequences have 32 bits and never wrap.
  static constexpr Sequence kSequences = 0xffff0000u;

  Member rank() const override { return rank_; }
  Member size() const override { return static_cast<Member>(size_); }
  void abort(const std::string& reason) override;
  Status close(Nanos limit) override { return close(limit, false); }
  Status close_in_order(const std::function<bool()>& hurry) override;
  Status give_up(Nanos limit) override { return close(limit, true); }
  Status post_message(MessageCall call, PostOptions options) override;

  // An operation of the multicast lane as a part of another group's. Not ok: post.done is not
  // called.
  Status post_part(Post post);
  // On both lanes together.
  uint64_t count(Counter c) const { return counters_.multicast->get(c) + counters_.reduce->get(c); }
  // As abort(), for a reason that has been found elsewhere.
  void fail_part(const Status& why);
  // The half of that which a group that is being closed still takes: what is in flight ends so.
  void fail_in_flight(const Status& why);
  // close() with the configured limit.
  Status close_with_linger() { return close(config_.linger); }
  // The first half of that: the future is ready soon after the limit. For closing many at once.
  std::future<Status> start_close(Nanos limit, bool force);
  // Waits for a future of start_close(). False: `hurry`, which may be null, ended the wait.
  static bool await_close(const std::future<Status>& closed, const std::function<bool()>& hurry);
  // The same for who does not wait: `closed` runs once, maybe in this call.
  void begin_close(Nanos limit, bool force, Completion closed);
  Nanos linger() const { return config_.linger; }
  const std::string& name() const { return name_; }
  const std::string& security() const { return config_.security; }  // setting
  // Bytes of a block, at most.
  uint64_t longest_block() const { return max_block_; }

  // False in the child of a fork, where every call fails and no lock of the group may be taken:
  // another thread of the parent may have held it.
  bool here() const;

  void on_failure(std::function<void(const Status&)> listener) override {
    state_->listen(std::move(listener));
  }

 protected:
  // Hands the post to the lane; state_->mutex is held. post.sequence is set.
  virtual Status push(LaneId lane, Post post) = 0;
  // A message, where the group carries them; likewise.
  virtual Status push_message(MessagePost post);
  // After that, with no lock held.
  virtual void pushed_message() {}
  // After that, with no lock held. `awaited`: the operation that was pushed, if the calling thread
  // waits for it at once (PostOptions::waited).
  virtual void pushed(LaneId, std::optional<Sequence> awaited) { (void)awaited; }
  // Fails what is in flight on the lane, on all ranks; this rank is the culprit.
  virtual void fail_lane(LaneId lane, const Status& why) = 0;
  // Leaves the lane when nothing is in flight there, or at `deadline`; `force` as for give_up().
  // `closed` runs once.
  virtual void close_lane(LaneId lane, Nanos deadline, bool force, Completion closed) = 0;
  // Whether there are lanes to fail and to close: not in a group of one, nor before it is open.
  virtual bool has_lanes() const = 0;
  // Whether other processes read the caller's memory where it lies.
  virtual bool read_by_peers() const { return false; }
  // Whether the lanes copy an all-gather's own block to its place.
  virtual bool copies_own_block() const { return false; }

  Status close(Nanos limit, bool force);
  // The group's lock (state_->mutex), or why `op` is refused.
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
  uint64_t max_block_ = UINT64_MAX;  // bytes; from the creation on
  GroupStats fixed_;                 // what does not change after the creation
  std::shared_ptr<Trace> trace_;
  PerLane<std::shared_ptr<Counters>> counters_{std::make_shared<Counters>(),
                                               std::make_shared<Counters>()};

  // Shared with the lanes' failure listeners, which may outlive a group that could not be closed.
  struct State {
    std::mutex mutex;
    PerLane<Sequence> next;
    bool reduced = false;  // a reduction since the last barrier
    bool closed = false;
    std::string path, reason;  // when they changed after creation

    // The first one is kept: whether it is this. Whoever posts holds the mutex, and may wait for
    // the thread that says this: it has a mutex of its own.
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
  // Each kind's checks, and the way of a post to its lane: group_posts.cpp.
  class Posting;
  Result<Sequence> post(Call call, PostOptions options) override;
  Result<Sequence> take_turn(LaneId lane, Post post);               // state_->mutex held
  Status check_sequence(const std::string& op, LaneId lane) const;  // state_->mutex held
};

}  // namespace mcast
