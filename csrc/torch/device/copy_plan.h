// Plans how device tensors pass through pinned memory: where each block lies there, in which pieces
// it is copied out and in, and for which word of pinned memory each piece in waits. Arithmetic
// only: it calls no device and touches no memory.
//
// Threads: none of its own; take_transfers() needs exclusive use. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "device/device_plan.h"

namespace mcast::pg {

// Blocks of pinned memory begin at multiples of this many bytes.
constexpr size_t kAlign = 256;
constexpr size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class CopyPlan {
 public:
  // Device to host: [offset, offset + length) of a source of a transfer.
  struct OutPiece {
    size_t transfer, source, offset, length;
    bool signalled;  // the device signals when it, and those before it, are out
  };
  // Host, or this rank's block, to device.
  struct InPiece {
    size_t transfer, target, offset, length;
    size_t word;      // its value ...
    uint32_t needed;  // ... shows that the bytes are final; 0: this rank's block
    bool same_gate(const InPiece& other) const {
      return word == other.word && needed == other.needed;
    }
  };
  // Records the network's progress with a target.
  struct TargetWord {
    size_t word = 0;
    size_t length = 0;  // of the target; 0: there is no need to wait
    size_t flag = 0;    // below flags(); kNoFlag: the word is the target's alone
  };
  static constexpr size_t kNoFlag = SIZE_MAX;
  // Words: the number of pieces that are out; whether the device has finished; 1 if the operation
  // has failed; then the words of targets.
  static constexpr size_t kCopiedWord = 0;
  static constexpr size_t kFinishedWord = 1;
  static constexpr size_t kFailedWord = 2;
  static constexpr size_t kFirstTargetWord = 3;

  // `rank` is this rank. Pieces have `piece` bytes, or a larger multiple of `unit`.
  CopyPlan(std::vector<DevicePlan> transfers, int rank, size_t piece, size_t unit);

  const std::vector<DevicePlan>& transfers() const { return transfers_; }
  // Plans of one message: the only transfer.
  bool sends() const { return message_ == DevicePlan::Kind::send; }
  bool receives() const { return message_ == DevicePlan::Kind::receive; }
  bool from_any() const { return from_any_; }
  // Releases the device memory. Afterwards words(), piece() and target_words() may still be called.
  std::vector<DevicePlan> take_transfers() { return std::exchange(transfers_, {}); }

  size_t piece() const { return piece_; }
  size_t words() const { return words_; }  // at the head of the pinned memory
  size_t flags() const { return flags_; }  // targets that share a word
  size_t bytes() const { return bytes_; }  // of pinned memory, the words included
  const std::vector<OutPiece>& outs() const { return outs_; }
  const std::vector<InPiece>& ins() const { return ins_; }
  // Words of a transfer, by target.
  const std::vector<TargetWord>& target_words(size_t transfer) const { return targets_[transfer]; }

  // Offsets in the pinned memory.
  size_t source_at(size_t transfer, size_t source) const;
  size_t target_at(size_t transfer, size_t target) const;

  // Adjacent pieces in host and device memory are copied at once. Returns one past the last piece
  // that is copied with piece `i`:
  size_t out_run(size_t i) const;
  size_t in_run(size_t i) const;

 private:
  void plan_out();
  void plan_in();

  std::vector<DevicePlan> transfers_;
  const int rank_;
  std::optional<DevicePlan::Kind> message_;  // send or receive
  bool from_any_ = false;
  size_t piece_;
  size_t words_ = kFirstTargetWord;
  size_t flags_ = 0;
  size_t bytes_ = 0;
  std::vector<size_t> blocks_;  // by transfer: offset of its first block
  std::vector<std::vector<TargetWord>> targets_;
  std::vector<OutPiece> outs_;
  std::vector<InPiece> ins_;
};

}  // namespace mcast::pg
