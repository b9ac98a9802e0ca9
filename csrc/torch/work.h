// The handle of one c10d operation: one or several engine operations, or one operation of the
// fallback with something to do after it.
//
// Life: make it, take one completion() per part, post the parts. The last part completes the work:
// at once on the thread that brings it (a lane), or on background threads when there are copies to
// make or a future to fulfil. Nobody needs to wait for it or keep it.
//
// Errors: Status -> DistBackendError (ValueError for kInvalidArgument), thrown by wait(), handed to
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
#include "engine/engine.h"
#include "observer.h"

namespace mcast::pg {

class DeviceCopies;

// The exception for a Status that is not ok. `context` comes before the message, "" for none.
std::exception_ptr to_exception(const Status& status, const std::string& context);
[[noreturn]] void throw_status(const Status& status, const std::string& context);

class McastWork final : public c10d::Work {
 public:
  struct Description {
    int rank = -1;
    int size = 1;  // of the group
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;                   // static; for the profiler
    std::vector<at::Tensor> inputs;                // shown by the profiler
    std::vector<std::vector<at::Tensor>> outputs;  // the result; one list, or one per input
    uint64_t sequence = 0;
    CallName context;                          // goes before error messages
    std::shared_ptr<Observer::Flight> flight;  // told when it ends
    // How many works of the group are in flight whose wait() was interrupted. May be null.
    std::shared_ptr<std::atomic<int>> interrupted;
  };
  explicit McastWork(Description description);
  ~McastWork() override;

  // Called with the first failed Status of the work, before anybody learns of it. Must not block.
  void on_failure(std::function<void(const Status&)> hook) { failure_hook_ = std::move(hook); }
  // Runs when all parts are complete without an error, off the lane. Before the first part is
  // posted.
  void set_after(std::function<void()> after) { after_ = std::move(after); }

  // The device side, which ends one part. Before the first part is posted. wait() without a timeout
  // then makes the caller's stream wait instead of the caller, as far as the device can do that.
  void set_copies(std::shared_ptr<DeviceCopies> copies) { copies_ = std::move(copies); }
  // DeviceCopies::enqueued() has become true.
  void look_again();

  // The callback for one part. expect() says how many there will be, before the first is posted.
  void expect(int parts) { pending_.store(parts, std::memory_order_relaxed); }
  Completion completion();
  // Ends one part of a work whose parts are not engine operations.
  void end_part(std::exception_ptr error);
  // For a device that failed, with its own words.
  std::exception_ptr device_error(const std::string& why) const;
  // Device tensors, before a gate opens for a part that has failed: from now on wait() raises.
  // Returns whether somebody relies on the outputs already and will not learn of it: wait() has
  // returned, or a future is done.
  bool record_failure(std::exception_ptr error);
  const CallName& name() const { return context_; }

  // Before the first post: how a thread in wait() may help (Group::help).
  using Helper = std::function<bool(const std::function<bool()>& done, Nanos until)>;
  void set_helper(Helper helper) { helper_ = std::move(helper); }

  // How many ranks' inputs are in the result of a reduction, the least of its parts; final when it
  // is complete. The engine lowers it.
  const std::shared_ptr<std::atomic<uint32_t>>& contributors() const { return contributors_; }

  // Of a receive: who has sent what it has got; the engine says so. Before the first part is
  // posted.
  const std::shared_ptr<std::atomic<Member>>& sources() {
    source_ = std::make_shared<std::atomic<Member>>(kNoMember);
    return source_;
  }
  int sourceRank() const override;

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Device tensors: as wait(). CPU tensors: nothing, as everywhere in c10d.
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  // Milliseconds from the call to the end, once it is over.
  float getDuration() const override;

 private:
  bool device_ready() const;
  // Whether wait() without a timeout may be over before the work is; makes it so as far as it can.
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
  bool settled_ = false;  // error_ is final; a future made now is fulfilled by its maker
  bool relied_on_ =
      false;               // a stream of the caller's waits, or a future is done: nobody will throw
  bool counted_ = false;   // in *interrupted_
  bool promised_ = false;  // the future was fulfilled when it was made, with the end of a stream
};

// The thread (threading.get_ident()) that handles signals for Python. Called when the module is
// loaded.
void set_main_thread(unsigned long ident);

// On that thread: lets Python run its signal handlers, and throws what they raise (Ctrl-C:
// KeyboardInterrupt). Elsewhere nothing. Call without locks and without Python's lock.
void check_signals();

// Whether this thread is inside the handling of a KeyboardInterrupt (an except or finally block).
// Takes Python's lock.
bool handles_interrupt();

// What the handler of a signal raises while the main thread waits in the core, which no exception
// may cross.
class HeldSignal {
 public:
  // Runs handlers, as check_signals(). True: one has raised something, now or before.
  bool raised();
  // Throws that, if there is any.
  void rethrow();
  // For a destructor: leaves an interrupt to whatever Python code runs next.
  void raise_later();

 private:
  std::exception_ptr what_;
};

}  // namespace mcast::pg
