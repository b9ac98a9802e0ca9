// Moves device tensors through pinned host memory, piece by piece, in parallel with the network.
//
//   out stream:  wait for the caller's stream | copy piece 0 | signal | copy piece 1 | signal | ...
//   network:     sends up to the readable end   ...           receives, raises completed ends
//   in stream:   wait for the caller's stream | gate, copy piece 0 | gate, copy piece 1 | ... | end
//
// With a gate (gate.h) everything is enqueued by the posting call; later the host only stores and
// reads words of pinned memory, and wait() makes the caller's stream wait for `end`. Without a
// gate, a thread queries events and enqueues the copies in as their bytes become final; wait()
// blocks its caller until all are enqueued.
//
// A failure is recorded in the work before any gate opens: later calls of wait() raise it. Then all
// gates open, so that the device never hangs, unless wait() had returned already and the group's
// policy forbids it (failure_policy.h). Under device_failure=raise each operation with gates ends
// with a command that reads the record of a failure and, if there is one, sets one element in 512
// bytes of its outputs to all ones: NaN in every floating-point type, -1 in integers.
//
// Messages come in any order, or never. So the copy in of a receive is enqueued only when the
// message is here, or earlier, behind a gate, on the stream of a caller that waits for it.
//
// Threads: make(), slices(), hook() and launch() on the posting thread; the rest as noted. Memory:
// pinned memory, device storages and temporaries are held until the device has finished.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "call_name.h"
#include "device/copy_plan.h"
#include "device/failure_policy.h"
#include "device/pinned.h"
#include "device/side_streams.h"
#include "runtime/engine.h"

namespace mcast::pg {

class McastWork;

// A failure of the device found by a thread other than the poller, for the poller: the first
// counts.
class DeviceFailure {
 public:
  // Any thread. Returns true if it is the first.
  bool set(std::exception_ptr error) {
    if (taken_.exchange(true)) return false;
    error_ = std::move(error);
    there_.store(true, std::memory_order_release);
    return true;
  }
  void rethrow() const {
    if (there_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<bool> there_{false};
  std::exception_ptr error_;
};

class DeviceCopies : public std::enable_shared_from_this<DeviceCopies> {
 public:
  // Takes pinned memory for all transfers from `pinned`. `rank` is this rank.
  using Pinned = std::function<std::shared_ptr<PinnedBuffer>(size_t bytes)>;
  static std::shared_ptr<DeviceCopies> make(std::vector<DevicePlan> transfers,
                                            std::shared_ptr<CopyBacks> backs, int rank,
                                            const SideStreams& streams,
                                            std::shared_ptr<FailurePolicy> policy,
                                            const Pinned& pinned);
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  const std::vector<DevicePlan>& transfers() const { return plan_.transfers(); }
  // The slices to post for transfer `i`.
  struct Slices {
    std::vector<Slice> inputs;   // inputs of a gather or reduction; the data of a send
    std::vector<Slice> outputs;  // broadcast, receive: the one slice. reduce: empty except on the
                                 // root
  };
  Slices slices(size_t i) const;
  // Adds the hooks of transfer `i` to its post: completed ends, and its end, which runs before the
  // work's (after it for a receive). `work` is the one of which options.done completes a part.
  void hook(size_t i, McastWork& work, PostOptions& options);

  struct Listener {
    c10::intrusive_ptr<McastWork> work;  // one part of it ends when the device has finished
    std::function<void()> wake;          // of the group: call after a readable end has risen
    std::function<void(const std::string&)> abort;  // fails the group because the device failed,
                                                    // for this reason

    static Listener of(c10::intrusive_ptr<McastWork> work, const std::shared_ptr<Group>& group);
  };
  // Call after the posts: enqueues all commands that can be enqueued.
  void launch(Listener listener);

  // Call before a thread waits for the work: from now on its current stream waits for a message
  // that is not here yet, if it can.
  void await();
  // Call at the same point. Returns true if the thread must wait for the end itself, since too many
  // sends have not left yet.
  bool runs_ahead() const;
  // Returns true if a future may be fulfilled before the end: the bytes become valid on stream().
  bool promises() const { return enqueued() && !plan_.receives(); }

  // Any thread. Returns true if join() covers everything.
  bool enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  // Makes the caller's current stream wait for everything.
  void join() const;
  // Throws if the caller's current stream is being captured in a graph.
  void refuse_capture(const CallName& name) const;
  // A stream on which everything is enqueued, once promises() returns true or the work is over.
  const c10::Stream& stream() const { return streams_.in; }

  // Network and device no longer use the pinned memory. Called once, by the last of the two.
  void release() {
    sources_.clear();
    pinned_ = nullptr;
  }

  // Called by the poller. Raises readable ends, enqueues copies; returns true if the device has
  // finished and the work was notified.
  bool poll();

  bool gated() const { return streams_.gate != nullptr; }
  // For a work with a gate that has been in flight for long: queries whether the device still
  // works; if not, poll() ends the work. May wait until the gates open. One thread.
  void check();
  // The work was notified.
  bool over() const { return over_.load(std::memory_order_relaxed); }

 private:
  DeviceCopies(std::vector<DevicePlan> transfers, std::shared_ptr<CopyBacks> backs, int rank,
               const SideStreams& streams, std::shared_ptr<FailurePolicy> policy,
               const Pinned& pinned);
  ~DeviceCopies() = default;

  uint32_t* word(size_t index) const;
  std::byte* host(size_t offset) const { return pinned_->data() + offset; }
  at::Tensor host_view(size_t offset, size_t length) const;

  void completed(const CopyPlan::TargetWord& target, uint64_t bytes);
  void open(size_t transfer);
  bool outputs_final(size_t transfer) const;
  bool failed(size_t transfer, const Status& status, McastWork& work);
  void copy_out(const c10::Stream& caller);
  size_t copy_in(size_t i);
  void hook_receive(McastWork& work, PostOptions& options);
  void receive_on(const c10::Stream& stream);
  void half_done();
  void enqueue_gates(const c10::Stream& stream);
  void enqueue_poison();
  void end_in(const c10::Stream& stream);
  bool raise_readable();
  void enqueue_completed();
  bool poll_words();   // with a gate: returns true if the device has finished
  bool poll_device();  // the same without a gate
  void break_down(std::exception_ptr error);
  void fail(const std::string& why);
  void finish(std::exception_ptr error);

  CopyPlan plan_;
  const SideStreams streams_;
  const std::shared_ptr<FailurePolicy> policy_;
  std::shared_ptr<CopyBacks> backs_;
  std::vector<std::atomic<bool>> counted_;  // for targets that share a word: true once this one is
                                            // counted
  std::shared_ptr<PinnedBuffer> pinned_;
  // Indexed by transfer, then by source; at least one if there is memory at all.
  std::vector<std::vector<std::shared_ptr<Region>>> sources_;

  struct Events {
    explicit Events(c10::DeviceType type) : caller(type), out_end(type), in_end(type) {}
    c10::Event caller, out_end, in_end;
  } events_;
  // Without a gate: events, each with the number of pieces that are out when it is reached.
  std::vector<std::pair<c10::Event, size_t>> out_events_;
  std::atomic<bool> enqueued_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> over_{false};
  // For a receive: `halves_` counts launch() and the message; `taken_` is set once a
  // thread makes the copy in.
  std::atomic<int> halves_{2};
  std::atomic<bool> taken_{false};
  DeviceFailure failure_;

  // Used by the poller only.
  size_t next_out_event_ = 0;
  size_t raised_ = 0;   // number of pieces out
  size_t written_ = 0;  // number of pieces in
  Listener listener_;
};

}  // namespace mcast::pg
