// Who is in the group. Threads: of the group's making, of reconfigure() and of the destructor;
// `none`
// and `first_failure` under the group's mutex.
#pragma once

#include <string>
#include <vector>

#include "backend.h"

namespace mcast::pg {

struct ProcessGroupMcast::Members {
  explicit Members(ProcessGroupMcast& group);

  // " on rank 0 of 2 in group 'job'", with the global ranks where those are others.
  std::string place() const;
  // Makes the engine's group of the rank and size of now on `store`; blocks until all ranks are
  // here.
  void make(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout);
  // Leaves the engine's group when all it has called is confirmed by all ranks, and warns where
  // that does not come. What a signal's handler raises meanwhile ends the wait and is left in
  // `signal`. Call without Python's lock.
  void close(Group& group, HeldSignal& signal) const;
  // Ends what there is between them.
  void leave();
  // The engine's group, which is not this one's any more; its statistics stay. Null: there is none.
  // Call without Python's lock.
  std::shared_ptr<Group> take_group();
  // Fallbacks that are not used any more.
  void drop(std::vector<BackendPtr> backends) const;

  // Their first one; completions keep it.
  std::shared_ptr<std::atomic<Code>> failure() const;

  ProcessGroupMcast& pg;
  std::shared_ptr<std::atomic<Code>> first_failure = std::make_shared<std::atomic<Code>>(Code::kOk);
  std::string incarnation;       // of the group on its store
  uint64_t own_global_rank = 0;  // that of the first making, for good
  int64_t number = -1;           // of the last reconfigure()
  bool none = false;             // until reconfigure()
};

}  // namespace mcast::pg
