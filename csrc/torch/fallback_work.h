// Makes a work of a fallback that has no abort() of its own (Gloo) end with the group: abort(), and
// the end of the engine's group, fail it. Its errors have the same form as those of other
// operations.
//
// Gloo's collectives have a future, so a waiting caller sleeps on this object and can be woken. Its
// sends and receives have none; a caller waits for them inside Gloo, which allows them to be
// aborted. Calls that Gloo's threads are executing continue after the work has failed.
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
    std::string context;  // prefix of error messages
    // Returns why the group is over; empty if it is not. Called while a caller waits.
    std::function<std::string()> group_failure;
    std::function<void()> failed;  // called once, for the first error
    std::shared_ptr<Observer::Flight> flight;
  };
  // After construction: follow().
  FallbackWork(WorkPtr inner, Description description);
  ~FallbackWork() override;
  // Follows the inner work to its end, if it has a future.
  void follow();

  // Ends the work, if it is not over yet, with this reason.
  void fail(const std::string& reason);
  // Returns true if Gloo is still executing it.
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
  // Returns true if threads of the fallback are still executing one.
  bool any_runs();

 private:
  std::vector<c10::intrusive_ptr<FallbackWork>> live();

  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<FallbackWork>> works_;
};

}  // namespace mcast::pg
