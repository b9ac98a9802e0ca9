// Layout of the pinned memory: a head of 32-bit words, then the blocks of each transfer as the
// engine sees them: this rank's block of a gather in its place among the others, all_reduce and
// reduce in place, the blocks of a reduce_scatter's input followed by its output. Word 0 counts the
// pieces copied out, word 1 is set when the device has finished, word 2 when the operation has
// failed. Then come the words for which copies in wait: one per target of more than a piece, which
// counts its final pieces, and one per run of smaller targets (of one or several transfers, of
// about a piece together), which counts the final targets. So the number of gates of a post, and of
// signals of its copies out, is bounded by its bytes over the piece, however many tensors and ranks
// there are. A receive has one word and one piece, even if it is empty: the engine reports only its
// end.
#include "device/copy_plan.h"

#include <algorithm>

namespace mcast::pg {
namespace {

// Each piece costs some microseconds of the posting thread, so large operations have larger pieces.
constexpr size_t kMostPieces = 64;

using Kind = DevicePlan::Kind;

size_t aligned(size_t bytes) { return rounded(bytes, kAlign); }

// Size in pinned memory, bytes.
size_t host_bytes(const DevicePlan& transfer) {
  switch (transfer.kind) {
    case Kind::gather:
      return transfer.block * transfer.targets.size();
    case Kind::scatter:
      return transfer.block * (transfer.sources.size() + 1);
    default:
      return transfer.block;
  }
}

// Returns true if `b` from `b_from` on begins where `a` up to `a_to` ends.
bool follows(const DeviceBytes& a, size_t a_to, const DeviceBytes& b, size_t b_from) {
  return a.storage.unsafeGetStorageImpl() == b.storage.unsafeGetStorageImpl() &&
         a.offset + a_to == b.offset + b_from;
}

}  // namespace

CopyPlan::CopyPlan(std::vector<DevicePlan> transfers, int rank, size_t piece, size_t unit)
    : transfers_(std::move(transfers)), rank_(rank) {
  size_t bytes = 0;
  for (const DevicePlan& transfer : transfers_) {
    bytes += host_bytes(transfer);
    if (transfer.kind != Kind::send && transfer.kind != Kind::receive) continue;
    message_ = transfer.kind;
    from_any_ = transfer.root == kNoMember;
  }
  piece_ = std::max(piece, rounded(bytes / kMostPieces, unit));
  plan_out();
  plan_in();
  bytes_ = aligned(words_ * sizeof(uint32_t));
  for (const DevicePlan& transfer : transfers_) {
    blocks_.push_back(bytes_);
    bytes_ += aligned(host_bytes(transfer));
  }
}

size_t CopyPlan::source_at(size_t transfer, size_t source) const {
  const DevicePlan& t = transfers_[transfer];
  const size_t place = t.gather() ? static_cast<size_t>(rank_) : source;
  return blocks_[transfer] + place * t.block;
}

size_t CopyPlan::target_at(size_t transfer, size_t target) const {
  const DevicePlan& t = transfers_[transfer];
  const size_t first = blocks_[transfer];
  switch (t.kind) {
    case Kind::gather:
      return first + target * t.block;
    case Kind::scatter:
      return first + t.sources.size() * t.block;
    case Kind::all_reduce:  // as the targets are laid out on the device
      return first + (t.targets[target].offset - t.targets[0].offset);
    default:
      return first;
  }
}

// Pieces leave block by block if a source is one block. A reduce-scatter sends segment s of every
// block before segment s + 1 of any, beginning with the next member's: its pieces leave in the same
// order.
void CopyPlan::plan_out() {
  size_t unsignalled = 0;
  for (size_t t = 0; t < transfers_.size(); ++t) {
    const DevicePlan& transfer = transfers_[t];
    const size_t count = transfer.sources.size();
    for (size_t at = 0; at < transfer.block; at += piece_) {
      for (size_t i = 0; i < count; ++i) {
        const size_t source = count > 1 ? (static_cast<size_t>(rank_) + 1 + i) % count : i;
        const size_t length = std::min(piece_, transfer.block - at);
        unsignalled += length;
        outs_.push_back({t, source, at, length, unsignalled >= piece_});
        if (unsignalled >= piece_) unsignalled = 0;
      }
    }
  }
  if (!outs_.empty()) outs_.back().signalled = true;
}

void CopyPlan::plan_in() {
  size_t first = 0, bytes = 0;  // of the run being made
  uint32_t targets = 0;
  const auto end_run = [&] {
    for (; first < ins_.size(); ++first) {
      if (ins_[first].needed > 0) ins_[first].needed = targets;
    }
    bytes = targets = 0;
  };
  for (size_t t = 0; t < transfers_.size(); ++t) {
    const DevicePlan& transfer = transfers_[t];
    targets_.emplace_back(transfer.targets.size());
    for (size_t i = 0; i < transfer.targets.size(); ++i) {
      const size_t length = transfer.targets[i].length;
      if (transfer.kind == Kind::receive) {
        ins_.push_back({t, i, 0, length, words_++, 1});
        first = ins_.size();
        continue;
      }
      if (transfer.own_copy && i == static_cast<size_t>(rank_)) {
        ins_.push_back({t, i, 0, length, 0, 0});
        continue;
      }
      if (length == 0) continue;
      if (length > piece_) {
        end_run();
        targets_[t][i] = {words_, length, kNoFlag};
        uint32_t needed = 0;
        for (size_t at = 0; at < length; at += piece_) {
          ins_.push_back({t, i, at, std::min(piece_, length - at), words_, ++needed});
        }
        first = ins_.size();
        ++words_;
        continue;
      }
      if (targets++ == 0) ++words_;
      targets_[t][i] = {words_ - 1, length, flags_++};
      ins_.push_back({t, i, 0, length, words_ - 1, 1});
      bytes += length;
      if (bytes >= piece_) end_run();
    }
  }
  end_run();
}

size_t CopyPlan::out_run(size_t i) const {
  for (; i + 1 < outs_.size() && !outs_[i].signalled; ++i) {
    const OutPiece &a = outs_[i], &b = outs_[i + 1];
    if (!follows(transfers_[a.transfer].sources[a.source], a.offset + a.length,
                 transfers_[b.transfer].sources[b.source], b.offset) ||
        source_at(a.transfer, a.source) + a.offset + a.length !=
            source_at(b.transfer, b.source) + b.offset) {
      break;
    }
  }
  return i + 1;
}

size_t CopyPlan::in_run(size_t i) const {
  for (; i + 1 < ins_.size(); ++i) {
    const InPiece &a = ins_[i], &b = ins_[i + 1];
    if (a.needed == 0 || b.needed == 0 || !a.same_gate(b) ||
        !follows(transfers_[a.transfer].targets[a.target], a.offset + a.length,
                 transfers_[b.transfer].targets[b.target], b.offset) ||
        target_at(a.transfer, a.target) + a.offset + a.length !=
            target_at(b.transfer, b.target) + b.offset) {
      break;
    }
  }
  return i + 1;
}

}  // namespace mcast::pg
