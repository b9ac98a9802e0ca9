// The handle of one c10d operation: one or several engine operations, or one operation of the
// fallback with something to do after it.
//
// Life cycle: make it, take one completion() per part, post the parts. The last part completes the
// work: immediately on the thread that ends that part (a lane), or on background threads if there
// are copies to make or a future to fulfil. Callers need not wait for it or keep it.
//
// Errors: Status -> DistBackendError (ValueError for kInvalidArgument), thrown by wait(), set on
// the future, kept for exception().
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "call_name.h"
#include "observer.h"
#include "runtime/engine.h"

namespace mcast::pg {

class DeviceCopies;

// Returns the exception for a Status that is not ok. `context` precedes the message, "" for none.
std::exception_ptr to_exception(const Status& status, const std::string& context);
[[noreturn]] void throw_status(const Status& status, const std::string& context);

class McastWork final : public c10d::Work {
 public:
  struct Description {
    int rank = -1;
    int size = 1;  // of the group
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;                   // static; for the profiler
    std::vector<at::Tensor> inputs;                // shown in the profiler
    std::vector<std::vector<at::Tensor>> outputs;  // the results; one list, or one per input
    uint64_t sequence = 0;
    CallName context;                          // prefix of error messages
    std::shared_ptr<Observer::Flight> flight;  // notified when it ends
    // Number of works of the group in flight whose wait() was interrupted. May be null.
    std::shared_ptr<std::atomic<int>> interrupted;
  };
  explicit McastWork(Description description);
  ~McastWork() override;

  // Called with the first failed Status of the work, before any waiter learns of it. Must not
  // block.
  void on_failure(std::function<void(const Status&)> hook) { failure_hook_ = std::move(hook); }
  // Runs when all parts are complete without an error, off the lane. Set it before the first part
  // is posted.
  void set_after(std::function<void()> after) { after_ = std::move(after); }

  // The device side, which ends one part. Set it before the first part is posted. wait() without a
  // timeout then makes the caller's stream wait instead of the caller, as far as the device can do
  // that.
  void set_copies(std::shared_ptr<DeviceCopies> copies) { copies_ = std::move(copies); }
  // DeviceCopies::enqueued() has become true.
  void look_again();

  // Returns the callback for one part. expect() sets their number, before the first is posted.
  void expect(int parts) { pending_.store(parts, std::memory_order_relaxed); }
  Completion completion();
  // Ends one part of a work whose parts are not engine operations.
  void end_part(std::exception_ptr error);
  // For a device that failed, with its own message.
  std::exception_ptr device_error(const std::string& why) const;
  // Device tensors, before a gate opens for a part that has failed: from now on wait() raises.
  // Returns true if a caller relies on the outputs already and will not learn of it: wait() has
  // returned, or a future is done.
  bool record_failure(std::exception_ptr error);
  const CallName& name() const { return context_; }

  // Set before the first post: lets a thread in wait() help (Group::help).
  using Helper = std::function<bool(const std::function<bool()>& done, Nanos until)>;
  void set_helper(Helper helper) { helper_ = std::move(helper); }

  // Number of ranks whose inputs are in the result of a reduction, the minimum over its parts;
  // final when it is complete. The engine lowers it.
  const std::shared_ptr<std::atomic<uint32_t>>& contributors() const { return contributors_; }

  // For a receive: the sender of the message, set by the engine. Call it before the first part is
  // posted.
  const std::shared_ptr<std::atomic<Member>>& sources() {
    source_ = std::make_shared<std::atomic<Member>>(kNoMember);
    return source_;
  }
  int sourceRank() const override;

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Device tensors: like wait(). CPU tensors: no effect, as everywhere in c10d.
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  // Milliseconds from the call to the end, once it is over.
  float getDuration() const override;

 private:
  bool device_ready() const;
  // Returns true if wait() without a timeout may return before the work is over; makes this so if
  // it can.
  bool may_join() const;
  void over(const std::exception_ptr& error);
  bool throw_or_join();
  c10::intrusive_ptr<McastWork> self();
  void copy_back();
  void settle_later();
  void settle();
  void note_interrupt();
  void settled_now();  // settle_mutex_ held
  void fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future,
              const std::exception_ptr& error) const;

  const std::vector<std::vector<at::Tensor>> outputs_;
  const uint64_t sequence_;
  const CallName context_;
  const bool nested_;  // posted by a callback, which may wait for the future
  const std::shared_ptr<Observer::Flight> flight_;
  const std::shared_ptr<std::atomic<int>> interrupted_;
  const std::shared_ptr<std::atomic<uint32_t>> contributors_;
  std::shared_ptr<std::atomic<Member>> source_;  // null but for a receive
  std::function<void(const Status&)> failure_hook_;
  std::function<void()> after_;
  Helper helper_;
  std::shared_ptr<DeviceCopies> copies_;  // null for CPU tensors
  std::atomic<int> pending_{0};

  std::mutex settle_mutex_;  // guards the rest
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool settled_ = false;    // error_ is final; a future made now is fulfilled by its maker
  bool relied_on_ = false;  // a stream of the caller waits, or a future is done: no call will throw
  bool counted_ = false;    // counted in *interrupted_
  bool promised_ = false;   // the future was fulfilled when it was made, with the end of a stream
};

// The thread (threading.get_ident()) that handles signals for Python. Called when the module is
// loaded.
void set_main_thread(unsigned long ident);

// On that thread: lets Python run its signal handlers, and throws the exceptions that they raise
// (Ctrl-C: KeyboardInterrupt). No effect on other threads. Call without locks and without Python's
// lock.
void check_signals();

// Returns true if this thread is inside the handling of a KeyboardInterrupt (an except or finally
// block). Takes Python's lock.
bool handles_interrupt();

// Holds an exception that a signal handler raises while the main thread waits in the core, which no
// exception may cross.
class HeldSignal {
 public:
  // Runs handlers, like check_signals(). Returns true if one has raised an exception, now or
  // before.
  bool raised();
  // Throws that exception, if there is one.
  void rethrow();
  // For a destructor: leaves an interrupt to the Python code that runs next.
  void raise_later();

 private:
  std::exception_ptr what_;
};

}  // namespace mcast::pg
