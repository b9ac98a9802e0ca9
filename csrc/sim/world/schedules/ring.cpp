// Blocks on a ring. Gathering: each rank's block goes once around, up to the rank before its owner.
// Scattering: block b starts at rank b + 1 as that rank's contribution, and each rank adds its own,
// until the sum is complete at its owner, rank b. An all-reduce scatters and then gathers: a piece
// continues around as soon as it is complete, so both halves overlap.
//
// A block has several pieces, so that a link sends one piece while the next rank passes on another.
//
// A note is (gathering, block, piece).
#include <algorithm>

#include "sim/world/schedules/schedules.h"

namespace mcast::sim {
namespace {

class Ring final : public Schedule {
 public:
  Ring(const Layout& layout, bool scatter, bool gather)
      : Schedule(layout),
        scatter_(scatter),
        gather_(gather),
        piece_(std::clamp(layout.size / layout.ranks / kPieces, kLeastPiece, kPiece)) {}

  void begin(RankId rank, Sends* sends) override {
    const uint32_t block = scatter_ ? before(rank) : rank;
    const uint64_t pieces = (layout_.block_bytes(block) + piece_ - 1) / piece_;
    for (uint64_t piece = 0; piece < pieces; piece++) send(rank, !scatter_, block, piece, sends);
  }

  void arrived(RankId rank, uint64_t note, Sends* sends) override {
    const bool gathering = is_gathering(note);
    const uint32_t block = block_of(note);
    if (!gathering && block == rank) {
      if (gather_) send(rank, true, block, piece_of(note), sends);
    } else if (!gathering || after(rank) != block) {
      send(rank, gathering, block, piece_of(note), sends);
    }
  }

  uint64_t expected(RankId rank) const override {
    uint64_t bytes = 0;
    if (scatter_) bytes += layout_.size - layout_.block_bytes(before(rank));
    if (gather_) bytes += layout_.size - layout_.block_bytes(rank);
    return bytes;
  }

  void parts(RankId, uint64_t note, std::vector<Part>* parts) const override {
    const uint32_t block = block_of(note);
    parts->push_back(
        {block, piece_of(note) * piece_, piece_bytes(block, piece_of(note)), !is_gathering(note)});
  }

 private:
  static constexpr uint64_t kPieces = 2, kLeastPiece = 4096;
  static constexpr unsigned kBlockShift = 40, kPhaseShift = 63;

  static bool is_gathering(uint64_t note) { return note >> kPhaseShift != 0; }
  static uint32_t block_of(uint64_t note) {
    return static_cast<uint32_t>((note >> kBlockShift) & ((1u << (kPhaseShift - kBlockShift)) - 1));
  }
  static uint64_t piece_of(uint64_t note) { return note & ((uint64_t{1} << kBlockShift) - 1); }

  uint64_t piece_bytes(uint32_t block, uint64_t piece) const {
    return std::min(piece_, layout_.block_bytes(block) - piece * piece_);
  }
  void send(RankId rank, bool gathering, uint32_t block, uint64_t piece, Sends* sends) const {
    const uint64_t note =
        uint64_t{gathering} << kPhaseShift | uint64_t{block} << kBlockShift | piece;
    sends->push_back({after(rank), piece_bytes(block, piece), note});
  }

  const bool scatter_, gather_;
  const uint64_t piece_;  // bytes
};

}  // namespace

uint64_t Layout::blocks_bytes(uint32_t first, uint32_t count) const {
  const uint32_t end = first + count;
  if (end <= ranks) return block_at(end) - block_at(first);
  return size - block_at(first) + block_at(end - ranks);
}

std::unique_ptr<Schedule> ring_all_gather(const Layout& layout) {
  return std::make_unique<Ring>(layout, false, true);
}
std::unique_ptr<Schedule> ring_reduce_scatter(const Layout& layout) {
  return std::make_unique<Ring>(layout, true, false);
}
std::unique_ptr<Schedule> ring_all_reduce(const Layout& layout) {
  return std::make_unique<Ring>(layout, true, true);
}

}  // namespace mcast::sim
