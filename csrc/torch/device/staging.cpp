// Device and host share the words at the head of the pinned memory (staging_plan.cpp) through a
// gate; without a gate only lane and poller use them.
//
// Deadlocks. Whatever the device has to wait for is already enqueued, or depends on the network
// alone: the copies out of an operation come before its gates, both wait for the caller's stream as
// it was at the post, and that can only wait for operations posted before. The network in turn
// waits for copies out only. So as long as all ranks post operations on device tensors in the same
// order (over all groups: the rule of NCCL), something can always move. A stream holds a bounded
// number of commands, and enqueueing one more waits until the gates open: so the work is with the
// poller before its gates are enqueued. The poller makes no call to the device while gates are
// closed: such a call could wait for a lock that another thread holds until the gates open. Whether
// the device still lives is asked by a thread that nobody waits for (check()).
#include "device/staging.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "background.h"
#include "device/completion_poller.h"
#include "work.h"

namespace mcast::pg {
namespace {

// Past every value that is waited for, with room to count on.
constexpr uint32_t kOpen = 0x40000000;

uint32_t load(uint32_t* word) {
  return std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire);
}
void store(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}
void add_one(uint32_t* word) {
  std::atomic_ref<uint32_t>(*word).fetch_add(1, std::memory_order_release);
}
// A mark never falls: the end of an operation may already have opened the gate.
void raise(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t> shared(*word);
  uint32_t before = shared.load(std::memory_order_relaxed);
  while (before < value &&
         !shared.compare_exchange_weak(before, value, std::memory_order_release)) {
  }
}

// Taken from torch's pool once per device and lane, never given back: a closed gate in a stream
// that somebody else got from the pool too would hold up his kernels.
std::pair<c10::Stream, c10::Stream> streams_of(c10::Device device, bool reduces) {
  struct All {
    std::mutex mutex;
    std::map<std::pair<c10::DeviceType, std::pair<c10::DeviceIndex, bool>>,
             std::pair<c10::Stream, c10::Stream>>
        made;
  };
  static auto* const all = new All;  // not destroyed at exit, when streams are still in use
  const std::lock_guard lock(all->mutex);
  const std::pair key(device.type(), std::pair(device.index(), reduces));
  const auto found = all->made.find(key);
  if (found != all->made.end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const std::pair made(guard.getStreamFromGlobalPool(device, true),
                       guard.getStreamFromGlobalPool(device, true));
  return all->made.emplace(key, made).first->second;
}

}  // namespace

SideStreams SideStreams::make(c10::Device device, bool reduces, bool gated, size_t segment,
                              size_t chunk) {
  const size_t unit = chunk == 0 ? kAlign : chunk;
  const auto [out, in] = streams_of(device, reduces);
  return {out, in, reduces, gated ? gate_of(device) : nullptr, rounded(segment, unit), unit};
}

Staged::Staged(std::vector<Transfer> transfers, std::shared_ptr<CopyBacks> backs, int rank,
               const SideStreams& streams)
    : transfers_(std::move(transfers)),
      rank_(rank),
      streams_(streams),
      backs_(std::move(backs)),
      caller_(streams.in.device_type()),
      out_end_(streams.in.device_type()),
      in_end_(streams.in.device_type()) {
  plan_pieces();
  sources_.resize(transfers_.size());
  for (size_t t = 0; t < transfers_.size(); ++t) {
    const Transfer& transfer = transfers_[t];
    if (transfer.block == 0) continue;
    // (Receivers of a broadcast have none to read, but one region for the slice that is written.)
    for (size_t i = 0; i < std::max<size_t>(1, transfer.sources.size()); ++i) {
      sources_[t].push_back(std::make_shared<Region>(host_source(t, i), transfer.block, pinned_));
      if (!transfer.sources.empty()) sources_[t][i]->set_readable(0);
    }
  }
}

// Events are destroyed with it, which calls the device: not on a lane.
std::shared_ptr<Staged> Staged::make(std::vector<Transfer> transfers,
                                     std::shared_ptr<CopyBacks> backs, int rank,
                                     const SideStreams& streams) {
  return {new Staged(std::move(transfers), std::move(backs), rank, streams), [](Staged* staged) {
            Background::instance().in_order([staged] {
              const RelaxedCaptures relaxed(staged->streams_.in.device_type());
              delete staged;
            });
          }};
}

void Staged::hook(size_t i, PostOptions& options) {
  if (transfers_[i].block == 0) return;
  options.completed_step = segment_;
  options.on_completed = [self = shared_from_this(), i](uint32_t target, uint64_t bytes) {
    self->final_to(self->marks_[i][target], bytes);
    if (self->streams_.gate == nullptr) CompletionPoller::instance().notify();
  };
  options.done = [self = shared_from_this(), i,
                  work_done = std::move(options.done)](const Status& status) mutable {
    if (!status.ok()) self->failed_.store(true, std::memory_order_release);
    self->open(i);
    work_done(status);
    dispose(std::move(self));
  };
}

void Staged::final_to(const Mark& mark, uint64_t bytes) {
  if (mark.length == 0) return;
  const bool whole = bytes == mark.length;
  if (mark.flag == kNoFlag) {
    raise(word(mark.word),
          static_cast<uint32_t>(whole ? (bytes + segment_ - 1) / segment_ : bytes / segment_));
  } else if (whole && !told_[mark.flag].exchange(true, std::memory_order_relaxed)) {
    add_one(word(mark.word));
  }
}

void Staged::open(size_t transfer) {
  for (const Mark& mark : marks_[transfer]) {
    if (mark.length > 0 && mark.flag == kNoFlag) store(word(mark.word), kOpen);
    if (mark.flag != kNoFlag) final_to(mark, mark.length);
  }
  if (streams_.gate == nullptr) CompletionPoller::instance().notify();
}

void Staged::copy_out(const c10::Stream& caller) {
  caller_.record(caller);
  caller_.block(streams_.out);
  caller_.block(streams_.in);
  const c10::StreamGuard on(streams_.out);
  for (size_t i = 0; i < outs_.size();) {
    const OutPiece& piece = outs_[i];
    const size_t end = out_run(i);
    size_t length = 0;
    for (; i < end; ++i) length += outs_[i].length;
    const DeviceBytes& source = transfers_[piece.transfer].sources[piece.source];
    host_view(host_source(piece.transfer, piece.source) + piece.offset, length)
        .copy_(source.view(piece.offset, length), true);
    if (!outs_[end - 1].told) continue;
    if (streams_.gate != nullptr) {
      streams_.gate->signal(streams_.out, word(kCopiedWord), static_cast<uint32_t>(end));
    } else {
      out_marks_.emplace_back(c10::Event(streams_.out.device_type()), end);
      out_marks_.back().first.record(streams_.out);
    }
  }
  out_end_.record(streams_.out);
}

at::Tensor Staged::host_view(const std::byte* at, size_t length) const {
  const DeviceBytes all{pinned_->storage(), 0, pinned_->size()};
  return all.view(static_cast<size_t>(at - pinned_->data()), length);
}

// On the in stream: piece `i` and what goes with it. Returns the next.
size_t Staged::copy_in(size_t i) {
  const InPiece& piece = ins_[i];
  const Transfer& transfer = transfers_[piece.transfer];
  const size_t end = in_run(i);
  size_t length = 0;
  for (; i < end; ++i) length += ins_[i].length;
  const at::Tensor target = transfer.targets[piece.target].view(piece.offset, length);
  if (piece.needed == 0) {
    target.copy_(transfer.sources[0].view(piece.offset, length), true);
  } else {
    target.copy_(host_view(host_target(piece.transfer, piece.target) + piece.offset, length), true);
  }
  return end;
}

void Staged::enqueue_gates() {
  const c10::StreamGuard on(streams_.in);
  const InPiece* open = nullptr;  // the last that was waited for
  for (size_t i = 0; i < ins_.size(); i = copy_in(i)) {
    const InPiece& piece = ins_[i];
    if (piece.needed == 0 || (open != nullptr && piece.same_gate(*open))) continue;
    streams_.gate->wait(streams_.in, word(piece.word), piece.needed);
    open = &piece;
  }
  end_in();
}

void Staged::end_in() {
  if (backs_) backs_->run();
  out_end_.block(streams_.in);
  in_end_.record(streams_.in);
  if (streams_.gate != nullptr) streams_.gate->signal(streams_.in, word(kFinishedWord), 1);
  enqueued_.store(true, std::memory_order_release);
}

void Staged::launch(c10::intrusive_ptr<McastWork> work, std::function<void()> waker,
                    std::function<void(const std::string&)> abort) {
  work_ = std::move(work);
  waker_ = std::move(waker);
  abort_ = std::move(abort);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  try {
    const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
    copy_out(guard.getStream(streams_.in.device()));
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  CompletionPoller::instance().add(shared_from_this());
  if (streams_.gate == nullptr) return;
  try {
    enqueue_gates();
  } catch (...) {
    break_down(std::current_exception());
    throw;
  }
}

void Staged::join() const {
  const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
  in_end_.block(guard.getStream(streams_.in.device()));
}

bool Staged::raise_ready() {
  const size_t before = raised_;
  if (streams_.gate != nullptr) {
    raised_ = load(word(kCopiedWord));
  } else {
    for (; next_mark_ < out_marks_.size() && out_marks_[next_mark_].first.query(); ++next_mark_) {
      raised_ = out_marks_[next_mark_].second;
    }
  }
  for (size_t i = before; i < raised_; ++i) {
    const OutPiece& piece = outs_[i];
    sources_[piece.transfer][piece.source]->set_readable(piece.offset + piece.length);
  }
  if (raised_ > before) waker_();
  return raised_ == outs_.size();
}

void Staged::enqueue_final() {
  if (enqueued() || failed_.load(std::memory_order_acquire)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard on(streams_.in);
  while (written_ < ins_.size()) {
    const InPiece& piece = ins_[written_];
    if (piece.needed > 0 && load(word(piece.word)) < piece.needed) return;
    // Read after the mark: a failed operation opens all of them.
    if (failed_.load(std::memory_order_acquire)) return;
    written_ = copy_in(written_);
  }
  end_in();
  work_->look_again();
}

bool Staged::poll() {
  try {
    if (broken_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
    if (!(streams_.gate != nullptr ? poll_words() : poll_device())) return false;
  } catch (const std::exception& error) {
    fail(error.what());
    return true;
  }
  finish(nullptr);
  return true;
}

bool Staged::poll_words() {
  // Also if the end is seen below: the last piece may have come since.
  return raise_ready() && enqueued() && load(word(kFinishedWord)) != 0;
}

bool Staged::poll_device() {
  const RelaxedCaptures relaxed(streams_.in.device_type());
  const bool out = raise_ready();
  enqueue_final();
  if (!out) return false;
  if (enqueued()) return in_end_.query();
  if (!failed_.load(std::memory_order_acquire)) return false;
  if (written_ == 0) return true;
  // Copies in are under way, and no event follows them.
  const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
  return guard.queryStream(streams_.in);
}

void Staged::check() {
  if (!enqueued()) return;  // enqueueing would have found out
  try {
    const RelaxedCaptures relaxed(streams_.in.device_type());
    in_end_.query();
  } catch (...) {
    break_down(std::current_exception());
  }
}

void Staged::break_down(std::exception_ptr error) {
  if (breaking_.exchange(true)) return;
  failure_ = std::move(error);
  broken_.store(true, std::memory_order_release);
  CompletionPoller::instance().notify();
}

// The device is unusable: what it still does with the memory is unknown, so that is never given
// back.
void Staged::fail(const std::string& why) {
  failed_.store(true, std::memory_order_release);
  for (size_t i = kFirstTargetWord; i < words_; ++i) store(word(i), kOpen);
  new auto(pinned_);
  new auto(transfers_);
  abort_("the device failed: " + why);
  finish(work_->device_error(why));
}

void Staged::finish(std::exception_ptr error) {
  over_.store(true, std::memory_order_relaxed);
  const auto work = std::move(work_);
  waker_ = nullptr;
  abort_ = nullptr;
  if (backs_) dispose_later(std::move(backs_));
  dispose_later(std::exchange(transfers_, {}));
  work->end_part(std::move(error));
}

}  // namespace mcast::pg
