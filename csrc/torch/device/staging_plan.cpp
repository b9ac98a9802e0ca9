// Layout of the pinned memory: a head of 32-bit words, then the blocks of each transfer as the
// engine sees them: the own block of a gather in its place among the others, all_reduce and reduce
// in place, the blocks of a reduce_scatter's input and behind them its output. Word 0 counts the
// pieces copied out, word 1 says that the device has finished. Then come the words that copies in
// wait for: one per target of more than a segment, which counts its final pieces, and one per run
// of smaller targets (of one or several transfers, of about a segment together), which counts the
// final targets. So the gates of a post, and the marks of its copies out, are bounded by its bytes
// over the segment, however many tensors and ranks there are.
#include <algorithm>
#include <cstring>

#include "device/staging.h"

namespace mcast::pg {
namespace {

// Each piece costs some microseconds of the posting thread, so large operations have larger ones.
constexpr size_t kMostPieces = 64;

using Kind = Transfer::Kind;

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

// Whether `b` from `b_from` on begins where `a` up to `a_to` ends.
bool follows(const DeviceBytes& a, size_t a_to, const DeviceBytes& b, size_t b_from) {
  return a.storage.unsafeGetStorageImpl() == b.storage.unsafeGetStorageImpl() &&
         a.offset + a_to == b.offset + b_from;
}

}  // namespace

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
void Staged::plan_out() {
  size_t untold = 0;
  for (size_t t = 0; t < transfers_.size(); ++t) {
    const Transfer& transfer = transfers_[t];
    const size_t count = transfer.sources.size();
    for (size_t at = 0; at < transfer.block; at += segment_) {
      for (size_t i = 0; i < count; ++i) {
        const size_t source = count > 1 ? (static_cast<size_t>(rank_) + 1 + i) % count : i;
        const size_t length = std::min(segment_, transfer.block - at);
        untold += length;
        outs_.push_back({t, source, at, length, untold >= segment_});
        if (untold >= segment_) untold = 0;
      }
    }
  }
  if (!outs_.empty()) outs_.back().told = true;
}

void Staged::plan_in() {
  size_t first = 0, bytes = 0;  // of the run that is being made
  uint32_t targets = 0;
  const auto end_run = [&] {
    for (; first < ins_.size(); ++first) {
      if (ins_[first].needed > 0) ins_[first].needed = targets;
    }
    bytes = targets = 0;
  };
  size_t flags = 0;
  for (size_t t = 0; t < transfers_.size(); ++t) {
    const Transfer& transfer = transfers_[t];
    marks_.emplace_back(transfer.targets.size());
    for (size_t i = 0; i < transfer.targets.size(); ++i) {
      const size_t length = transfer.targets[i].length;
      if (transfer.own_copy && i == static_cast<size_t>(rank_)) {
        ins_.push_back({t, i, 0, length, 0, 0});
        continue;
      }
      if (length == 0) continue;
      if (length > segment_) {
        end_run();
        marks_[t][i] = {words_, length, kNoFlag};
        uint32_t needed = 0;
        for (size_t at = 0; at < length; at += segment_) {
          ins_.push_back({t, i, at, std::min(segment_, length - at), words_, ++needed});
        }
        first = ins_.size();
        ++words_;
        continue;
      }
      if (targets++ == 0) ++words_;
      marks_[t][i] = {words_ - 1, length, flags++};
      ins_.push_back({t, i, 0, length, words_ - 1, 1});
      bytes += length;
      if (bytes >= segment_) end_run();
    }
  }
  end_run();
  told_ = std::vector<std::atomic<bool>>(flags);
}

void Staged::plan_pieces() {
  words_ = kFirstTargetWord;
  size_t bytes = 0;
  for (const Transfer& transfer : transfers_) bytes += host_bytes(transfer);
  segment_ = std::max(streams_.segment, rounded(bytes / kMostPieces, streams_.unit));
  plan_out();
  plan_in();
  size_t end = aligned(words_ * sizeof(uint32_t));
  for (const Transfer& transfer : transfers_) {
    data_.push_back(end);
    end += aligned(host_bytes(transfer));
  }
  pinned_ = pinned_buffer(end);
  std::memset(pinned_->data(), 0, words_ * sizeof(uint32_t));
}

// Pieces that lie side by side in host and device memory go in one copy. One past the last that
// goes with piece `i`:
size_t Staged::out_run(size_t i) const {
  for (; i + 1 < outs_.size() && !outs_[i].told; ++i) {
    const OutPiece &a = outs_[i], &b = outs_[i + 1];
    if (!follows(transfers_[a.transfer].sources[a.source], a.offset + a.length,
                 transfers_[b.transfer].sources[b.source], b.offset) ||
        host_source(a.transfer, a.source) + a.offset + a.length !=
            host_source(b.transfer, b.source) + b.offset) {
      break;
    }
  }
  return i + 1;
}

size_t Staged::in_run(size_t i) const {
  for (; i + 1 < ins_.size(); ++i) {
    const InPiece &a = ins_[i], &b = ins_[i + 1];
    if (a.needed == 0 || b.needed == 0 || !a.same_gate(b) ||
        !follows(transfers_[a.transfer].targets[a.target], a.offset + a.length,
                 transfers_[b.transfer].targets[b.target], b.offset) ||
        host_target(a.transfer, a.target) + a.offset + a.length !=
            host_target(b.transfer, b.target) + b.offset) {
      break;
    }
  }
  return i + 1;
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

}  // namespace mcast::pg
