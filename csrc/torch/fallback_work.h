// A work of a fallback that has no abort() of its own (Gloo), made to end with the group: abort(),
// and the end of the engine's group, fail it. Errors get the words of every other operation.
//
// Gloo's collectives have a future, so whoever waits here sleeps on this object and can be woken.
// Its sends and receives have none and are waited for inside Gloo, which lets them be aborted.
// What Gloo's threads are in the middle of goes on behind a work that was failed.
//
// Threads: any. Errors: DistBackendError.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "observer.h"

namespace mcast::pg {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class FallbackWork final : public c10d::Work {
 public:
  struct Description {
    int rank = -1;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    uint64_t sequence = 0;
    std::string context;  // goes before error messages
    // Why the group is over; empty: it is not. Asked while somebody waits.
    std::function<std::string()> group_failure;
    std::function<void()> failed;  // told once, of the first error
    std::shared_ptr<Observer::Flight> flight;
  };
  // After construction: follow().
  FallbackWork(WorkPtr inner, Description description);
  ~FallbackWork() override;
  // Follows the inner work to its end, if it has a future.
  void follow();

  // Ends the work, if it is not over yet, with this reason.
  void fail(const std::string& reason);
  // Whether Gloo is still at it.
  bool inner_runs() const;

  bool isCompleted() override;
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override { fail("abort() of the work"); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override;

 private:
  friend class FallbackWatch;
  c10::intrusive_ptr<FallbackWork> self();
  std::exception_ptr worded(const std::exception_ptr& error) const;
  void end(std::exception_ptr error);
  void wait_here(std::chrono::milliseconds timeout);
  void wait_inside(std::chrono::milliseconds timeout);

  const WorkPtr inner_;
  const uint64_t sequence_;
  const std::string context_;
  const std::function<std::string()> group_failure_;
  const std::function<void()> failed_;
  const std::shared_ptr<Observer::Flight> flight_;
  c10::intrusive_ptr<c10::ivalue::Future> inner_future_;  // null: a send or receive
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> inner_over_{false};
  std::atomic<bool> ended_{false};
};

// Works in flight of one group.
class FallbackWorks {
 public:
  void add(const c10::intrusive_ptr<FallbackWork>& work);
  void fail_all(const std::string& reason);
  // Whether threads of the fallback are in the middle of one.
  bool any_runs();

 private:
  std::vector<c10::intrusive_ptr<FallbackWork>> live();

  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<FallbackWork>> works_;
};

}  // namespace mcast::pg
