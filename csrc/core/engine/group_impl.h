// Group as callers see it: argument checks, sequence numbers, the way to the lane and back.
#pragma once

#include <sys/types.h>

#include <array>
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
  // A group of one rank needs no lanes: null.
  GroupImpl(const GroupSpec& spec, std::shared_ptr<LaneThread> lane,
            std::shared_ptr<LaneThread> reduce);
  // Before open(): what the multicast lanes have received, and where operations are recorded.
  void observe(std::shared_ptr<const std::atomic<uint64_t>> arrived, std::shared_ptr<Trace> trace) {
    arrived_ = std::move(arrived);
    trace_ = std::move(trace);
  }
  void explain_transport(const std::string& why) { fixed_.transport_reason = why; }
  ~GroupImpl() override;

  // Adds the group to its lane, probes, waits until the path is decided.
  Status open(const Agreement& agreement, Nanos deadline, const std::function<bool()>& interrupted);

  Member rank() const override { return rank_; }
  Member size() const override { return static_cast<Member>(size_); }
  Result<Sequence> post_broadcast(Slice data, Member root, PostOptions options) override;
  Result<Sequence> post_allgather(Slice input, std::vector<Slice> outputs,
                                  PostOptions options) override;
  Result<Sequence> post_reduce_scatter(std::vector<Slice> inputs, Slice output, Reducing how,
                                       PostOptions options) override;
  Result<Sequence> post_allreduce(Slice input, Slice output, Reducing how,
                                  PostOptions options) override;
  Result<Sequence> post_reduce(Slice input, Slice output, Member root, Reducing how,
                               PostOptions options) override;
  Result<Sequence> post_barrier(PostOptions options) override;
  std::function<void()> waker() const override;
  void abort(const std::string& reason) override;
  Status close(Nanos limit) override { return close(limit, false); }
  Status give_up(Nanos limit) override { return close(limit, true); }
  GroupStats stats() const override;
  // close() with the configured limit.
  Status close_with_linger() { return close(config_.linger); }
  // The first half of that: the future is ready soon after the limit. For closing many at once.
  std::future<Status> start_close(Nanos limit, bool hurry);
  Nanos linger() const { return config_.linger; }

  // In the child of a fork: every call fails from now on.
  bool here() const;

 private:
  // The work of a group of one: nothing but a copy.
  using Local = std::function<void()>;
  Result<Sequence> post(size_t lane, Post post, PostOptions options, const Local& local = {});
  Result<Sequence> push_post(size_t lane, Post post);  // state_->mutex held
  Result<Sequence> post_reduction(wire::Kind kind, Member root, uint64_t bytes, ReduceArgs args,
                                  PostOptions options);
  void add_to_lane(size_t lane, const GroupParams& params, const MulticastAddress& address,
                   const std::vector<StreamAddress>& peers, Lane& l, Nanos now);
  Status close(Nanos limit, bool hurry);
  Status creation_timeout(Nanos deadline) const;
  Status check_block(const std::string& op, uint64_t bytes) const;
  void warn_of_ring() const;
  Status refuse(const std::string& op) const;  // state_->mutex held

  const std::string name_;
  const Member rank_;
  const uint32_t size_;
  const Config config_;
  const pid_t pid_;
  const Nanos creation_limit_;
  const std::array<std::shared_ptr<LaneThread>, 2> lanes_;  // multicast, reduce
  std::shared_ptr<const std::atomic<uint64_t>> arrived_;
  std::shared_ptr<Trace> trace_;
  uint64_t tag_ = 0;
  uint64_t max_block_ = UINT64_MAX;  // bytes; from open() on
  GroupStats fixed_;                 // what does not change after open()
  std::array<std::shared_ptr<Counters>, 2> counters_{std::make_shared<Counters>(),
                                                     std::make_shared<Counters>()};

  // Shared with the lane's failure listener, which may outlive a group that could not be closed.
  struct State {
    std::mutex mutex;
    std::array<Sequence, 2> next{};
    bool reduced = false;  // a reduction since the last barrier
    bool closed = false;
    Status failure;
    std::string path, reason;  // when they changed after creation
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace mcast
