// Layout of the pinned memory: a head of 32-bit words, then the blocks of each transfer as the
// engine sees them: the own block of a gather in its place among the others, all_reduce and reduce
// in place, the blocks of a reduce_scatter's input and behind them its output. Word 0 counts the
// pieces copied out, word 1 says that the device has finished, then comes one word per target that
// counts the final pieces of it. Device and host share the words through a gate; without a gate
// only lane and watch thread use them.
//
// Deadlocks. Whatever the device has to wait for is already enqueued, or depends on the network
// alone: the copies out of an operation come before its gates, both wait for the caller's stream as
// it was at the post, and that can only wait for operations posted before. The network in turn
// waits for copies out only. So as long as all ranks post operations on device tensors in the same
// order (over all groups: the rule of NCCL), something can always move. The watch thread makes no
// call to the device while gates are closed: such a call could wait for a lock that another thread
// holds until the gates open.
#include "staging.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "background.h"
#include "work.h"

namespace mcast::pg {
namespace {

constexpr size_t kCopiedWord = 0;
constexpr size_t kFinishedWord = 1;
constexpr size_t kFirstTargetWord = 2;
constexpr uint32_t kOpen = 0x7fffffff;  // past every value that is waited for
constexpr size_t kAlign = 256;
// Each piece costs some microseconds of the posting thread, so large operations have larger ones.
constexpr size_t kMostPieces = 64;

using Kind = Transfer::Kind;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
size_t aligned(size_t bytes) { return rounded(bytes, kAlign); }

// Bytes of pinned memory.
size_t host_bytes(const Transfer& transfer) {
  switch (transfer.kind) {
    case Kind::gather:
      return transfer.block * transfer.targets.size();
    case Kind::scatter:
      return transfer.block * (transfer.sources.size() + 1);
    default:
      return transfer.block;
  }
}

uint32_t load(uint32_t* word) {
  return std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire);
}
void store(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}
// A mark never falls: the end of an operation may already have opened the gate.
void raise(uint32_t* word, uint32_t value) {
  std::atomic_ref<uint32_t> shared(*word);
  uint32_t before = shared.load(std::memory_order_relaxed);
  while (before < value &&
         !shared.compare_exchange_weak(before, value, std::memory_order_release)) {
  }
}

}  // namespace

SideStreams SideStreams::make(c10::Device device, bool gated, size_t segment, size_t chunk) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const size_t unit = chunk == 0 ? kAlign : chunk;
  return {guard.getStreamFromGlobalPool(device, true), guard.getStreamFromGlobalPool(device, true),
          gated ? gate_of(device) : nullptr, rounded(segment, unit), unit};
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
      if (!transfer.sources.empty()) sources_[t][i]->set_ready(0);
    }
  }
}

// Events are destroyed with it, which calls the device: not on a lane.
std::shared_ptr<Staged> Staged::make(std::vector<Transfer> transfers,
                                     std::shared_ptr<CopyBacks> backs, int rank,
                                     const SideStreams& streams) {
  return {new Staged(std::move(transfers), std::move(backs), rank, streams),
          [](Staged* staged) { Background::instance().in_order([staged] { delete staged; }); }};
}

uint32_t* Staged::word(size_t index) const {
  return reinterpret_cast<uint32_t*>(pinned_->data()) + index;
}

std::byte* Staged::host_source(size_t transfer, size_t source) const {
  const Transfer& t = transfers_[transfer];
  const size_t place = t.gather() ? static_cast<size_t>(rank_) : source;
  return pinned_->data() + data_[transfer] + place * t.block;
}

std::byte* Staged::host_target(size_t transfer, size_t target) const {
  const Transfer& t = transfers_[transfer];
  std::byte* const base = pinned_->data() + data_[transfer];
  switch (t.kind) {
    case Kind::gather:
      return base + target * t.block;
    case Kind::scatter:
      return base + t.sources.size() * t.block;
    case Kind::all_reduce:  // as the targets are laid out on the device
      return base + (t.targets[target].offset - t.targets[0].offset);
    default:
      return base;
  }
}

// Pieces leave block by block where a source is one block. A reduce-scatter sends segment s of
// every block before segment s + 1 of any, beginning with the next member's: its pieces leave
// likewise.
void Staged::plan_out(size_t t) {
  const Transfer& transfer = transfers_[t];
  const size_t count = transfer.sources.size();
  for (size_t at = 0; at < transfer.block; at += segment_) {
    for (size_t i = 0; i < count; ++i) {
      const size_t source = count > 1 ? (static_cast<size_t>(rank_) + 1 + i) % count : i;
      outs_.push_back({t, source, at, std::min(segment_, transfer.block - at)});
    }
  }
}

void Staged::plan_in(size_t t) {
  const Transfer& transfer = transfers_[t];
  for (size_t i = 0; i < transfer.targets.size(); ++i) {
    const size_t length = transfer.targets[i].length;
    if (transfer.own_copy && i == static_cast<size_t>(rank_)) {
      ins_.push_back({t, i, 0, length, 0, 0});
      continue;
    }
    uint32_t needed = 0;
    for (size_t at = 0; at < length; at += segment_) {
      ins_.push_back({t, i, at, std::min(segment_, length - at), first_word_[t] + i, ++needed});
    }
  }
}

void Staged::plan_pieces() {
  words_ = kFirstTargetWord;
  size_t bytes = 0;
  for (const Transfer& transfer : transfers_) {
    first_word_.push_back(words_);
    words_ += transfer.targets.size();
    bytes += host_bytes(transfer);
  }
  first_word_.push_back(words_);
  segment_ = std::max(streams_.segment, rounded(bytes / kMostPieces, streams_.unit));
  size_t end = aligned(words_ * sizeof(uint32_t));
  for (size_t t = 0; t < transfers_.size(); ++t) {
    data_.push_back(end);
    end += aligned(host_bytes(transfers_[t]));
    plan_out(t);
    plan_in(t);
  }
  pinned_ = pinned_buffer(end);
  for (size_t i = 0; i < words_; ++i) store(word(i), 0);
}

Staged::Slices Staged::slices(size_t i) const {
  const Transfer& transfer = transfers_[i];
  Slices out;
  const size_t block = transfer.block;
  const bool apart = transfer.kind == Kind::scatter;
  out.inputs.resize(apart ? static_cast<size_t>(std::max<size_t>(transfer.sources.size(), 1)) : 1);
  out.outputs.resize(transfer.gather() ? transfer.targets.size() : 1);
  if (block == 0) return out;
  for (size_t s = 0; s < out.inputs.size(); ++s) out.inputs[s] = {sources_[i][s], 0, block};
  switch (transfer.kind) {
    case Kind::broadcast:
      out.outputs[0] = out.inputs[0];
      break;
    case Kind::gather: {
      const auto all = std::make_shared<Region>(host_target(i, 0), host_bytes(transfer), pinned_);
      for (size_t target = 0; target < out.outputs.size(); ++target) {
        out.outputs[target] = {all, target * block, block};
      }
      break;
    }
    default:
      if (transfer.kind == Kind::reduce && transfer.targets[0].length == 0) break;
      // A region of its own: the source's mark is not the output's.
      out.outputs[0] = {std::make_shared<Region>(host_target(i, 0), block, pinned_), 0, block};
  }
  return out;
}

void Staged::hook(size_t i, PostOptions& options) {
  const size_t block = transfers_[i].block;
  if (block == 0) return;
  options.mark_step = segment_;
  std::vector<size_t> lengths;  // a copy: transfers_ may be given up before the engine is done
  for (const DeviceBytes& target : transfers_[i].targets) lengths.push_back(target.length);
  options.on_mark = [self = shared_from_this(), i, lengths = std::move(lengths)](uint32_t target,
                                                                                 uint64_t bytes) {
    const size_t length = lengths[target], segment = self->segment_;
    raise(self->word(self->first_word_[i] + target),
          static_cast<uint32_t>(bytes == length ? (length + segment - 1) / segment
                                                : bytes / segment));
    if (self->streams_.gate == nullptr) watch::notify();
  };
  options.done = [self = shared_from_this(), i,
                  work_done = std::move(options.done)](const Status& status) mutable {
    if (!status.ok()) self->failed_.store(true, std::memory_order_release);
    self->open(i);
    work_done(status);
    dispose(std::move(self));
  };
}

void Staged::open(size_t transfer) {
  for (size_t i = first_word_[transfer]; i < first_word_[transfer + 1]; ++i) store(word(i), kOpen);
  if (streams_.gate == nullptr) watch::notify();
}

void Staged::copy_out(const c10::Stream& caller) {
  caller_.record(caller);
  caller_.block(streams_.out);
  caller_.block(streams_.in);
  const c10::StreamGuard on(streams_.out);
  uint32_t copied = 0;
  for (const OutPiece& piece : outs_) {
    const DeviceBytes& source = transfers_[piece.transfer].sources[piece.source];
    host_view(host_source(piece.transfer, piece.source) + piece.offset, piece.length)
        .copy_(source.view(piece.offset, piece.length), true);
    if (streams_.gate != nullptr) {
      streams_.gate->signal(streams_.out, word(kCopiedWord), ++copied);
    } else {
      out_marks_.emplace_back(streams_.out.device_type());
      out_marks_.back().record(streams_.out);
    }
  }
  out_end_.record(streams_.out);
}

at::Tensor Staged::host_view(const std::byte* at, size_t length) const {
  const DeviceBytes all{pinned_->storage(), 0, pinned_->size()};
  return all.view(static_cast<size_t>(at - pinned_->data()), length);
}

// On the in stream.
void Staged::copy_in(const InPiece& piece) {
  const Transfer& transfer = transfers_[piece.transfer];
  const at::Tensor target = transfer.targets[piece.target].view(piece.offset, piece.length);
  if (piece.needed == 0) {
    target.copy_(transfer.sources[0].view(piece.offset, piece.length), true);
  } else {
    const std::byte* const at = host_target(piece.transfer, piece.target) + piece.offset;
    target.copy_(host_view(at, piece.length), true);
  }
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
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
    copy_out(guard.getStream(streams_.in.device()));
    if (streams_.gate != nullptr) {
      const c10::StreamGuard on(streams_.in);
      for (const InPiece& piece : ins_) {
        if (piece.needed > 0) {
          streams_.gate->wait(streams_.in, word(piece.word), piece.needed);
        }
        copy_in(piece);
      }
      end_in();
    }
  } catch (const std::exception& error) {
    fail(error.what(), std::current_exception());
    throw;
  }
  watch::add(shared_from_this());
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
    while (raised_ < outs_.size() && out_marks_[raised_].query()) ++raised_;
  }
  for (size_t i = before; i < raised_; ++i) {
    const OutPiece& piece = outs_[i];
    sources_[piece.transfer][piece.source]->set_ready(piece.offset + piece.length);
  }
  if (raised_ > before) waker_();
  return raised_ == outs_.size();
}

void Staged::enqueue_final() {
  if (enqueued() || failed_.load(std::memory_order_acquire)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard on(streams_.in);
  for (; written_ < ins_.size(); ++written_) {
    const InPiece& piece = ins_[written_];
    if (piece.needed > 0 && load(word(piece.word)) < piece.needed) return;
    // Read after the mark: a failed operation opens all of them.
    if (failed_.load(std::memory_order_acquire)) return;
    copy_in(piece);
  }
  end_in();
  work_->look_again();
}

bool Staged::poll() {
  try {
    const bool out = raise_ready();
    if (streams_.gate == nullptr) enqueue_final();
    if (!out) return false;  // also if the end is seen below: it may have come since
    if (streams_.gate != nullptr) {
      if (load(word(kFinishedWord)) == 0) return false;
    } else {
      if (enqueued()) {
        if (!in_end_.query()) return false;
      } else if (!failed_.load(std::memory_order_acquire)) {
        return false;
      } else if (written_ > 0) {
        // Copies in are under way, and no event follows them.
        const c10::impl::VirtualGuardImpl guard(streams_.in.device_type());
        if (!guard.queryStream(streams_.in)) return false;
      }
    }
  } catch (const std::exception& error) {
    fail(error.what(), std::current_exception());
    return true;
  }
  finish(nullptr);
  return true;
}

// The device is unusable: what it still does with the memory is unknown, so that is never given
// back.
void Staged::fail(const std::string& why, std::exception_ptr error) {
  failed_.store(true, std::memory_order_release);
  for (size_t t = 0; t + 1 < first_word_.size(); ++t) open(t);
  new auto(pinned_);
  new auto(transfers_);
  abort_("the device failed: " + why);
  finish(std::move(error));
}

void Staged::finish(std::exception_ptr error) {
  const auto work = std::move(work_);
  waker_ = nullptr;
  abort_ = nullptr;
  if (backs_) dispose_later(std::move(backs_));
  dispose_later(std::exchange(transfers_, {}));
  work->end_part(std::move(error));
}

}  // namespace mcast::pg
