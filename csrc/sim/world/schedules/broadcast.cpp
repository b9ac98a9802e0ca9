// Broadcasts over point-to-point sends. Ranks are counted from the root. Binomial: a rank with the
// data sends it whole to one rank after the other, so the number of ranks that have it doubles with
// each send. Chain: pieces go from each rank to the next as they arrive, so all links are used at
// once.
#include <algorithm>
#include <bit>

#include "sim/world/schedules/schedules.h"

namespace mcast::sim {
namespace {

class FromRoot : public Schedule {
 public:
  using Schedule::Schedule;

  uint64_t expected(RankId rank) const override { return rank == layout_.root ? 0 : layout_.size; }

 protected:
  uint32_t place_of(RankId rank) const { return before(rank, layout_.root); }
  RankId rank_at(uint32_t place) const { return after(layout_.root, place); }
};

class Binomial final : public FromRoot {
 public:
  explicit Binomial(const Layout& layout) : FromRoot(layout), next_(layout.ranks) {}

  void begin(RankId rank, Sends* sends) override {
    if (rank == layout_.root) start(rank, sends);
  }
  void arrived(RankId rank, uint64_t, Sends* sends) override { start(rank, sends); }
  void delivered(RankId rank, Sends* sends) override {
    next_[rank] *= 2;
    send(rank, sends);
  }
  void parts(RankId, uint64_t, std::vector<Part>* parts) const override {
    parts->push_back({layout_.root, 0, layout_.size, false});
  }

 private:
  void start(RankId rank, Sends* sends) {
    next_[rank] = 1u << std::bit_width(place_of(rank));
    send(rank, sends);
  }
  void send(RankId rank, Sends* sends) {
    const uint32_t to = place_of(rank) + next_[rank];
    if (to < layout_.ranks) sends->push_back({rank_at(to), layout_.size, 0});
  }

  std::vector<uint32_t> next_;  // distance from a rank to the receiver of its current send
};

// A note is the number of the piece.
class Chain final : public FromRoot {
 public:
  using FromRoot::FromRoot;

  void begin(RankId rank, Sends* sends) override {
    if (rank != layout_.root) return;
    for (uint64_t piece = 0; piece * kPiece < layout_.size; piece++) send(rank, piece, sends);
  }
  void arrived(RankId rank, uint64_t note, Sends* sends) override {
    if (after(rank) != layout_.root) send(rank, note, sends);
  }
  void parts(RankId, uint64_t note, std::vector<Part>* parts) const override {
    parts->push_back({layout_.root, note * kPiece, bytes_of(note), false});
  }

 private:
  uint64_t bytes_of(uint64_t piece) const {
    return std::min(kPiece, layout_.size - piece * kPiece);
  }
  void send(RankId rank, uint64_t piece, Sends* sends) const {
    sends->push_back({after(rank), bytes_of(piece), piece});
  }
};

}  // namespace

std::unique_ptr<Schedule> binomial_broadcast(const Layout& layout) {
  return std::make_unique<Binomial>(layout);
}
std::unique_ptr<Schedule> chain_broadcast(const Layout& layout) {
  return std::make_unique<Chain>(layout);
}

}  // namespace mcast::sim
