// Decides what happens when an operation on device tensors fails after wait() has returned: a
// stream of the caller then waits at a gate, and commands behind the gate would read stale bytes
// without an error (setting `device_failure`).
//
//   abort  the gates stay closed and the process ends, within 15 seconds
//   raise  the outputs are overwritten in part (poison, device_copies.cpp), and every later mcast
//          call on that device raises the failure (taint) until it is cleared
//   log    the failure is logged, the outputs are stale
//
// An end that this process has requested itself (abort(), destroy_process_group(), reconfigure(),
// exit) does not count as such a failure: it is logged.
//
// Threads: every function from any thread; none blocks. Errors: c10::DistBackendError.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <optional>
#include <string>

namespace mcast::pg {

// The policy of one group.
class FailurePolicy {
 public:
  // `setting`: a value of device_failure.
  explicit FailurePolicy(const std::string& setting);
  ~FailurePolicy();
  FailurePolicy(const FailurePolicy&) = delete;
  FailurePolicy& operator=(const FailurePolicy&) = delete;

  // Returns true if operations end with a command that poisons the outputs of a failed one.
  bool poisons() const { return action_ == Action::kRaise; }
  // This process ends the group.
  void ended_here() { ended_here_.store(true); }

  // `name`, an operation on `device`, has failed because of `why` after wait() had returned.
  // `undefined`: its outputs are not final. Returns true if its gates may open.
  bool failed_after_wait(c10::Device device, bool undefined, const std::string& name,
                         const std::string& why);

  // Clears the taints set by this group's operations.
  void clear();

 private:
  enum class Action { kAbort, kRaise, kLog };

  const Action action_;
  std::atomic<bool> ended_here_{false};
};

// Throws if a failure has tainted `device`.
void check_untainted(const char* op, c10::Device device);
// Clears the failures that have tainted `device`, or all devices.
void clear_failures(std::optional<c10::Device> device);
// This process is ending: later failures are logged.
void leave_failures();

}  // namespace mcast::pg
