// startCoalescing() ... endCoalescing(): the calls between them become one work. Calls of the
// engine are posted at once, as always; a fallback that coalesces itself (NCCL, for which sends and
// receives in a ring would else wait for each other) is told to begin at its first call.
//
// Threads: start() and end() on the thread that makes the calls between them; those of other
// threads meanwhile are not part of the batch. Errors: none of its own.
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

  // What an earlier call left, since the caller has failed in between, is forgotten.
  void start();
  bool active() const { return thread_.load() == std::this_thread::get_id(); }
  void add(const WorkPtr& work);
  // Before a call of this fallback. True: it holds its calls back until the end, so that their
  // works are not to be waited for one by one.
  bool touch(const BackendPtr& fallback);
  // One work for all of them.
  WorkPtr end(int rank);

 private:
  std::atomic<std::thread::id> thread_;  // between start() and end()
  std::vector<WorkPtr> works_;
  std::vector<BackendPtr> started_;
};

}  // namespace mcast::pg
