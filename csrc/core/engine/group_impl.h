// Group as callers see it: argument checks, sequence numbers, the way to the lane and back.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "engine/lane_thread.h"
#include "engine/rendezvous.h"

namespace mcast {

class GroupImpl final : public Group {
 public:
  // A group of one rank needs no lane: `lane` null.
  GroupImpl(const GroupSpec& spec, std::shared_ptr<LaneThread> lane);
  ~GroupImpl() override;

  // Adds the group to its lane, probes, waits until the path is decided.
  Status open(const Agreement& agreement, Nanos deadline, const std::function<bool()>& interrupted);

  Member rank() const override { return rank_; }
  Member size() const override { return static_cast<Member>(size_); }
  Result<Sequence> post_broadcast(Slice data, Member root, PostOptions options) override;
  Result<Sequence> post_allgather(Slice input, std::vector<Slice> outputs,
                                  PostOptions options) override;
  Result<Sequence> post_barrier(PostOptions options) override;
  std::function<void()> waker() const override;
  void abort(const std::string& reason) override;
  Status close(Nanos limit) override;
  GroupStats stats() const override;
  // close() with the configured limit.
  Status close_with_linger() { return close(config_.linger); }
  // The first half of that: the future is ready soon after the limit. For closing many at once.
  std::future<Status> start_close(Nanos limit);
  Nanos linger() const { return config_.linger; }

  // In the child of a fork: every call fails from now on.
  bool here() const;

 private:
  Result<Sequence> post(wire::Descriptor descriptor, Slice input, std::vector<Slice> outputs,
                        PostOptions options);
  void warn_of_ring() const;
  Status refuse(const std::string& op) const;  // state_->mutex held

  const std::string name_;
  const Member rank_;
  const uint32_t size_;
  const Config config_;
  const pid_t pid_;
  const std::shared_ptr<LaneThread> lane_;
  uint64_t tag_ = 0;
  GroupStats fixed_;  // what does not change after open()
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();

  // Shared with the lane's failure listener, which may outlive a group that could not be closed.
  struct State {
    std::mutex mutex;
    Sequence next = 0;
    bool closed = false;
    Status failure;
    std::string path, reason;  // when they changed after creation
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace mcast
