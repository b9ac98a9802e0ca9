// startCoalescing() ... endCoalescing(): the calls between them become one work. Calls of the
// engine are posted immediately, as always; a fallback that coalesces itself (NCCL, for which sends
// and receives in a ring would otherwise wait for each other) starts its batch at its first call.
//
// Threads: start() and end() on the thread that makes the calls between them; calls that other
// threads make meanwhile are not part of the batch. Errors: none of its own.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace mcast::pg {

class Coalescing {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // Begins a batch. A batch that an earlier caller left unfinished because it failed is dropped.
  void start();
  bool active() const { return thread_.load() == std::this_thread::get_id(); }
  void add(const WorkPtr& work);
  // Call before each call of this fallback. Returns true if it holds its calls back until the end,
  // so that their works must not be waited for one by one.
  bool touch(const BackendPtr& fallback);
  // Returns one work for all calls of the batch.
  WorkPtr end(int rank);

 private:
  std::atomic<std::thread::id> thread_;  // between start() and end()
  std::vector<WorkPtr> works_;
  std::vector<BackendPtr> started_;
};

}  // namespace mcast::pg
