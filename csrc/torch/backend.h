// ProcessGroupMcast: the c10d::Backend. broadcast, the all-gathers, the reductions, barrier, send
// and recv (where the group carries messages) and, of CPU tensors, gather, scatter and the
// all-to-alls go to the engine; everything else, and reductions and messages of devices whose
// fallback works on the device, to a fallback backend behind the same object. Overrides the virtual
// names that every torch from 2.11 on has; newer names forward to them.
//
// Threads: as c10d requires: calls in the same order on all ranks; abort() from any thread at any
// time. Nothing that waits holds Python's lock. Errors: ValueError/TypeError for bad arguments,
// DistBackendError for everything that happens on the network.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coalescing.h"
#include "device/device_copies.h"
#include "device/group_devices.h"
#include "fallback_work.h"
#include "fallbacks.h"
#include "observer.h"
#include "options.h"
#include "runtime/engine.h"
#include "tensors.h"
#include "work.h"

namespace mcast::pg {

using Tensors = std::vector<at::Tensor>;

// Options that all kinds of calls share.
struct CallOptions {
  std::chrono::milliseconds timeout;
  bool waited = false;  // c10d waits for the work before the call returns to the user
};
template <typename Options>
CallOptions call_options(const Options& options) {
  return {options.timeout, !options.asyncOp};
}

class ProcessGroupMcast final : public c10d::Backend {
 public:
  // Blocks until all ranks are here and the engine has probed the network: up to options->timeout.
  // `options` is copied.
  ProcessGroupMcast(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    const c10::intrusive_ptr<McastOptions>& options);
  ~ProcessGroupMcast() override;

  const std::string getBackendName() const override { return kBackendName; }
  // A copy: c10d writes into what it gets here when it makes other groups out of this one.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return c10::make_intrusive<McastOptions>(*options_);
  }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  void enableCollectivesTiming() override {}  // nothing to enable: all are timed
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;

  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsShrinking() const override { return true; }
  void startCoalescing() override { coalescing_.start(); }
  WorkPtr endCoalescing() override;

  // Groups out of this one (regroup.cpp). Each blocks until the ranks of the new group are here.
  // split(): null where this rank is not in `ranks` (of this group).
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  BackendPtr merge(const c10::intrusive_ptr<c10d::Store>& store,
                   const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank,
                   const int& size) override;
  // Called by the ranks that stay; this group may have failed.
  BackendPtr shrink(const std::vector<int64_t>& excluded, int flags,
                    const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // For a group that was made with enable_reconfigure, which has no members before the first
  // reconfigure(); later calls replace them (reconfigure.cpp). Called by all ranks of the new
  // membership, with nothing else of this group beside it; blocks until they are here. After an
  // error of the rendezvous there are no members again, and it can be called with another number.
  bool supportsReconfigure() const override { return options_->enable_reconfigure; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

  // Engine.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  // Engine, but for devices whose fallback reduces there (reduce.cpp).
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;

  // Engine for CPU tensors, else fallback (exchange.cpp).
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;

  // Fallback (fallback.cpp).
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  // Engine where the group carries messages, but for devices whose fallback sends from there; else
  // fallback (point_to_point.cpp).
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  // CPU tensors that the engine of the host maps (allocation.cpp). A group that has none raises
  // NotImplementedError; if the engine's memory is full, tensors lie in torch's.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  // Ok: such tensors are used where they lie. Else why there are none.
  Status maps_memory() const;

  // Through the store (monitored_barrier.cpp).
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // For stats(). group_stats() of a closed group is what it was when it was closed.
  GroupStats group_stats() const;
  const CallStatistics& call_statistics() const { return observer_->calls(); }
  Fallbacks& fallbacks() const { return *fallbacks_; }
  // For the rendezvous of fallbacks: no key there is of another making of this group.
  c10::intrusive_ptr<c10d::Store> fallback_store() const;
  const Config& config() const { return config_; }

 private:
  struct Failure;
  struct PointToPoint;  // sends and receives by the engine
  struct Members;       // who is in it: once, or as reconfigure() says

  // Whether this is the process that made the group. The child of a fork touches nothing of it: a
  // thread of the parent may have held any of the locks, and the threads behind it do not exist.
  bool here() const;
  void check_here(const char* op) const;  // throws elsewhere
  std::shared_ptr<Group> group(const char* op) const;
  Nanos limit(std::chrono::milliseconds timeout) const;
  std::string context(const char* op, uint64_t sequence) const;
  c10::intrusive_ptr<McastWork> make_work(Op op, c10d::OpType type, const char* title,
                                          Tensors inputs, std::vector<Tensors> outputs, int parts,
                                          std::shared_ptr<CopyBacks> back, int peer = -1);
  PostOptions post_options(Op op, McastWork& work, const CallOptions& call,
                           at::ScalarType dtype) const;
  WorkPtr post_gathers(Op op, c10d::OpType type, std::vector<GatherPlan> plans, Tensors inputs,
                       std::vector<Tensors> outputs, std::shared_ptr<CopyBacks> back,
                       const CallOptions& call);
  // Device tensors (device/post.cpp). `back` as in plan_gather().
  WorkPtr post_device(Op op, c10d::OpType type, const char* title,
                      std::vector<DevicePlan> transfers, Tensors inputs,
                      std::vector<Tensors> outputs, std::shared_ptr<CopyBacks> back,
                      std::chrono::milliseconds timeout);
  void check_gather_lists(const char* op, const Tensors& outputs, const at::Tensor& input) const;

  // Pinned memory for a collective; waits for earlier ones where all together have too much.
  std::shared_ptr<PinnedBuffer> pinned(Op op, size_t bytes, Nanos limit);

  // An operation that the engine has taken.
  WorkPtr served(Op op, uint64_t bytes, WorkPtr work);
  // One that the fallback of the tensor's device serves by `call`.
  using FallbackCall = std::function<WorkPtr(c10d::Backend&)>;
  WorkPtr passed(Op op, c10d::OpType type, const at::Tensor& tensor, const FallbackCall& call);
  // If the barrier is for a device, waits until the device has finished all earlier work.
  void finish_device(const c10d::BarrierOptions& opts);
  c10::intrusive_ptr<McastOptions> child_options(
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) const;

  // Data that a reduce-scatter moves.
  struct ScatterPlan {
    std::vector<Slice> inputs;  // by rank
    Slice output;
    Reducing how;
  };
  // Data that an exchange moves: by rank, the slice sent to it and the slice received from it.
  struct ExchangePlan {
    explicit ExchangePlan(at::ScalarType type) : dtype(type) {}
    // For a gather or a scatter among `size` ranks; all slices are empty.
    ExchangePlan(at::ScalarType type, wire::Kind of, int64_t from_or_to, int size)
        : kind(of),
          root(static_cast<Member>(from_or_to)),
          inputs(static_cast<size_t>(size)),
          outputs(static_cast<size_t>(size)),
          dtype(type) {}

    wire::Kind kind = wire::Kind::kAllToAll;
    Member root = kNoMember;
    std::vector<Slice> inputs, outputs;
    at::ScalarType dtype;
    std::shared_ptr<CopyBacks> back = std::make_shared<CopyBacks>();
  };
  // Whether the engine reduces this tensor.
  bool reduces(const at::Tensor& tensor) const;
  // Device tensors: one transfer per output, made by plan(index, how, copies back).
  using PlanCopies = std::function<DevicePlan(size_t, const Reducing&, CopyBacks&)>;
  WorkPtr reduce_device(Op op, c10d::OpType type, const char* title, const Tensors& inputs,
                        const Tensors& outputs, const c10d::ReduceOp& reduce,
                        const PlanCopies& plan, std::chrono::milliseconds timeout);
  WorkPtr scatter_device(Op op, c10d::OpType type, const Tensors& outputs, const Tensors& inputs,
                         const c10d::ReduceScatterOptions& opts);
  ScatterPlan plan_scatter(const char* op, const at::Tensor& output, const at::Tensor& input,
                           const c10d::ReduceOp& reduce, CopyBacks& back) const;
  WorkPtr scatter_each(Op op, c10d::OpType type, const Tensors& outputs,
                       std::vector<ScatterPlan> plans, Tensors inputs,
                       std::shared_ptr<CopyBacks> back, const CallOptions& call);
  WorkPtr allreduce_each(Op op, c10d::OpType type, Tensors& tensors, const c10d::ReduceOp& reduce,
                         const CallOptions& call);
  WorkPtr post_exchange(Op op, c10d::OpType type, ExchangePlan plan, Tensors inputs,
                        std::vector<Tensors> outputs, const CallOptions& call);
  // Lists whose tensors differ in size (uneven.cpp).
  WorkPtr gather_uneven(const Tensors& outputs, const at::Tensor& input, const CallOptions& call);
  WorkPtr scatter_uneven(const at::Tensor& output, const Tensors& inputs,
                         const c10d::ReduceOp& reduce, const CallOptions& call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<McastOptions> options_;
  const Config config_;
  const std::string name_;
  const std::unique_ptr<Members> members_;
  // For errors: which rank of which group this is and, where ranks are not the global ones, which
  // those are.
  std::shared_ptr<const std::string> place_;
  const pid_t pid_;
  std::atomic<uint64_t> sequence_{0};  // of collectives
  std::atomic<uint64_t> messages_{0};  // of sends and receives: not all ranks make them
  std::atomic<int64_t> timeout_ms_;
  const std::shared_ptr<std::atomic<int>> interrupted_ = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<Observer> observer_;
  Coalescing coalescing_;  // of the thread that makes the calls
  std::unique_ptr<Fallbacks> fallbacks_;
  GroupDevices devices_;

  mutable std::mutex mutex_;  // guards the rest
  std::shared_ptr<Group> group_;
  GroupStats last_stats_;
  std::optional<c10::weak_intrusive_ptr<c10d::Backend>> last_split_;
};

}  // namespace mcast::pg
