// The members of the group. Threads: those of the group's creation, of reconfigure() and of the
// destructor; `none` and `first_failure` under the group's mutex.
#pragma once

#include <string>
#include <vector>

#include "backend.h"

namespace mcast::pg {

struct ProcessGroupMcast::Members {
  explicit Members(ProcessGroupMcast& group);

  // " on rank 0 of 2 in group 'job'", with the global ranks if they differ.
  std::string place() const;
  // Creates the engine's group with the current rank and size on `store`; blocks until all ranks
  // are here.
  void make(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout);
  // Leaves the engine's group when all ranks have confirmed all its calls, and warns if they do
  // not. An exception that a signal handler raises meanwhile ends the wait and is left in `signal`.
  // Call without Python's lock.
  void close(Group& group, HeldSignal& signal) const;
  // Ends the connections between the members.
  void leave();
  // Returns the engine's group and gives it up; its statistics stay. Null if there is none. Call
  // without Python's lock.
  std::shared_ptr<Group> take_group();
  // Destroys fallbacks that are not used any more.
  void drop(std::vector<BackendPtr> backends) const;

  // Their first failure; completions keep it.
  std::shared_ptr<std::atomic<Code>> failure() const;

  ProcessGroupMcast& pg;
  std::shared_ptr<std::atomic<Code>> first_failure = std::make_shared<std::atomic<Code>>(Code::kOk);
  std::string incarnation;       // of the group on its store
  uint64_t own_global_rank = 0;  // rank at the first creation, kept permanently
  int64_t number = -1;           // of the last reconfigure()
  bool none = false;             // until reconfigure()
};

}  // namespace mcast::pg
