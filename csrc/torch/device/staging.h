// Device tensors on their way through pinned host memory, piece by piece, beside the network.
//
//   out stream:  wait for the caller's stream | copy piece 0 | signal | copy piece 1 | signal | ...
//   network:     sends up to the readable end   ...           receives, raises completed ends
//   in stream:   wait for the caller's stream | gate, copy piece 0 | gate, copy piece 1 | ... | end
//
// With a gate (gate.h) everything is enqueued by the posting call; later the host only stores and
// reads words of pinned memory, and wait() makes the caller's stream wait for `end`. Without one a
// thread asks for events and enqueues the copies in as their bytes become final; wait() blocks its
// caller until all are enqueued. Errors open every gate: the device never hangs, the work carries
// the error.
//
// Threads: make(), slices(), hook() and launch() on the posting thread; the rest as noted. Memory:
// pinned memory, device storages and temporaries are held until the device has finished.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/gate.h"
#include "device/pinned.h"
#include "device/transfer.h"
#include "engine/engine.h"

namespace mcast::pg {

class McastWork;

// Blocks of pinned memory begin at multiples of this many bytes.
constexpr size_t kAlign = 256;
constexpr size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The streams of one lane on one device: those of the process, and how a group uses them.
struct SideStreams {
  c10::Stream out;
  c10::Stream in;
  bool reduces;      // the lane
  const Gate* gate;  // null: none
  size_t segment;    // bytes of a piece, at least; a multiple of `unit`
  size_t unit;

  // `gated` false: no gate even if there is one. `chunk`: of the network, bytes; a piece that ends
  // with one need not wait for the next piece to leave. 0: any.
  static SideStreams make(c10::Device device, bool reduces, bool gated, size_t segment,
                          size_t chunk);
};

class Staged : public std::enable_shared_from_this<Staged> {
 public:
  // Takes pinned memory for all transfers. `rank` is the own one.
  static std::shared_ptr<Staged> make(std::vector<Transfer> transfers,
                                      std::shared_ptr<CopyBacks> backs, int rank,
                                      const SideStreams& streams);
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  const std::vector<Transfer>& transfers() const { return transfers_; }
  // What to post for transfer `i`.
  struct Slices {
    std::vector<Slice> inputs;   // of a gather or reduction
    std::vector<Slice> outputs;  // broadcast: the one slice. reduce: empty away from the root
  };
  Slices slices(size_t i) const;
  // Adds the hooks of transfer `i` to its post: completed ends, and its end before the work's.
  void hook(size_t i, PostOptions& options);

  // After the posts: enqueues what can be, and lets `work` end one part when the device has
  // finished. `waker`: of the group. `abort`: called with a reason if the device fails.
  void launch(c10::intrusive_ptr<McastWork> work, std::function<void()> waker,
              std::function<void(const std::string&)> abort);

  // Any thread. True: join() covers everything.
  bool enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  // Makes the caller's current stream wait for everything.
  void join() const;
  // A stream on which everything is enqueued, once enqueued().
  const c10::Stream& stream() const { return streams_.in; }

  // Network and device are done with the pinned memory. Once, by the last of the two.
  void release() { pinned_ = nullptr; }

  // The poller. Raises readable ends, enqueues; true: the device has finished and the work was
  // told.
  bool poll();

  bool gated() const { return streams_.gate != nullptr; }
  // Of a gated work, in flight for long: asks the device whether it lives; if not, poll() ends the
  // work. May wait until the gates open. One thread.
  void check();
  // The work was told.
  bool over() const { return over_.load(std::memory_order_relaxed); }

 private:
  Staged(std::vector<Transfer> transfers, std::shared_ptr<CopyBacks> backs, int rank,
         const SideStreams& streams);
  ~Staged() = default;

  // Device to host: [offset, offset + length) of a source of a transfer.
  struct OutPiece {
    size_t transfer, source, offset, length;
    bool told;  // a mark follows, for this and those before it
  };
  // Host, or the own block, to device.
  struct InPiece {
    size_t transfer, target, offset, length;
    size_t word;      // in words(); its value ...
    uint32_t needed;  // ... says when the bytes are final; 0: the own block
    bool same_gate(const InPiece& other) const {
      return word == other.word && needed == other.needed;
    }
  };
  // Where the network's progress with a target is noted.
  struct Mark {
    size_t word = 0;
    size_t length = 0;  // of the target; 0: there is nothing to wait for
    size_t flag = 0;    // in told_; kNoFlag: the word is the target's alone
  };
  static constexpr size_t kNoFlag = SIZE_MAX;
  static constexpr size_t kCopiedWord = 0;
  static constexpr size_t kFinishedWord = 1;
  static constexpr size_t kFirstTargetWord = 2;

  uint32_t* word(size_t index) const;
  // Where a source or target of a transfer is in the pinned memory.
  std::byte* host_source(size_t transfer, size_t source) const;
  std::byte* host_target(size_t transfer, size_t target) const;
  at::Tensor host_view(const std::byte* at, size_t length) const;
  void plan_pieces();
  void plan_out();
  void plan_in();
  size_t out_run(size_t i) const;
  size_t in_run(size_t i) const;

  void final_to(const Mark& mark, uint64_t bytes);
  void open(size_t transfer);
  void copy_out(const c10::Stream& caller);
  size_t copy_in(size_t i);
  void enqueue_gates();
  void end_in();
  bool raise_ready();
  void enqueue_final();
  bool poll_words();   // with a gate: whether the device has finished
  bool poll_device();  // without
  void break_down(std::exception_ptr error);
  void fail(const std::string& why);
  void finish(std::exception_ptr error);

  std::vector<Transfer> transfers_;
  const int rank_;
  const SideStreams streams_;
  std::shared_ptr<CopyBacks> backs_;
  size_t segment_ = 0;
  size_t words_ = 0;                      // at the head of the pinned memory
  std::vector<size_t> data_;              // by transfer: offset in pinned memory
  std::vector<std::vector<Mark>> marks_;  // by transfer, by target
  std::vector<std::atomic<bool>> told_;   // of targets that share a word: counted there
  std::vector<OutPiece> outs_;
  std::vector<InPiece> ins_;
  std::shared_ptr<PinnedBuffer> pinned_;
  // By transfer, by source; at least one where there is memory at all.
  std::vector<std::vector<std::shared_ptr<Region>>> sources_;

  c10::Event caller_, out_end_, in_end_;
  // Without a gate; with the number of pieces that are out then.
  std::vector<std::pair<c10::Event, size_t>> out_marks_;
  std::atomic<bool> enqueued_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> over_{false};
  std::atomic<bool> breaking_{false};
  std::atomic<bool> broken_{false};  // the device fails: failure_ says why
  std::exception_ptr failure_;

  // The poller's.
  size_t next_mark_ = 0;
  size_t raised_ = 0;   // out pieces
  size_t written_ = 0;  // in pieces
  c10::intrusive_ptr<McastWork> work_;
  std::function<void()> waker_;
  std::function<void(const std::string&)> abort_;
};

}  // namespace mcast::pg
