// Reports a group's operations to torch.profiler (record_param_comms), the flight recorder, and the
// completion hook.
//
// Threads: any; a hook runs on a thread of its own, one call after another. Errors: an exception of
// a hook is logged.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call_statistics.h"
#include "flight.h"

namespace mcast::pg {

// Description of one operation; valid for the call only.
struct Told {
  Op op = Op::barrier;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  bool point_to_point = false;
  int peer = -1;  // of a send or receive; -1: any
  at::TensorList inputs;
  c10::ArrayRef<std::vector<at::Tensor>> outputs;
  std::chrono::milliseconds timeout{0};
};

class Observer : public std::enable_shared_from_this<Observer> {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  // One operation from its start to its end. Any thread reports once that it is over; when its work
  // reports it too, the hook and the callers that wait for pending works are notified.
  class Flight {
   public:
    void end(bool ok);
    // For a receive from any rank. Call before end().
    void came_from(int rank) { entry_.peer.store(rank); }
    void tell();
    // The end of the operation will not be known.
    void abandon();
    bool over() const { return over_.load(std::memory_order_acquire); }
    float milliseconds() const;  // once it has ended

   private:
    friend class Observer;
    std::shared_ptr<Observer> observer_;  // until it has been notified
    FlightEntry entry_;
    c10d::OpType type_ = c10d::OpType::UNKNOWN;
    std::chrono::steady_clock::time_point begin_, end_;
    std::atomic<bool> over_{false};
  };

  Observer(std::string group, int rank, int size, const std::vector<uint64_t>& global_ranks);
  // The group has other members. Must not run in parallel with begin().
  void move_to(int rank, int size, const std::vector<uint64_t>& global_ranks);

  // The work's profiling range should begin after this call.
  std::shared_ptr<Flight> begin(const Told& told, const std::string& description);
  // At most one hook.
  void set_hook(Hook hook);
  CallStatistics& calls() { return calls_; }
  // Waits until all operations have ended and the hook has been notified. Call without Python's
  // lock.
  void wait_idle();

 private:
  void profile(const Told& told, const FlightPlace& place) const;
  std::shared_ptr<const FlightPlace> place(const std::string& description);
  bool ended_unseen();  // for groups without a hook
  void ended(std::shared_ptr<c10d::WorkInfo> info);

  CallStatistics calls_;
  const std::string group_;
  int size_ = 0;
  int first_ = 0, stride_ = 1;  // of global ranks
  std::mutex mutex_;            // guards the rest
  std::shared_ptr<const FlightPlace> place_;
  std::condition_variable idle_;
  Hook hook_;
  std::atomic<uint64_t> op_id_{0};
  uint64_t in_flight_ = 0;
};

}  // namespace mcast::pg
