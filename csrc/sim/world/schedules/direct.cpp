// Every rank sends to every other rank, starting with the next one, so that different ranks send to
// different ones at any time. A few sends of a rank are under way at once: a new stream has a small
// window, and the others fill the link meanwhile.
//
// Gathering: a rank sends its own block to all. Scattering: it sends to each rank its contribution
// to that rank's block. A note is the block.
#include "sim/world/schedules/schedules.h"

namespace mcast::sim {
namespace {

constexpr uint32_t kAtOnce = 8;

class Direct final : public Schedule {
 public:
  Direct(const Layout& layout, bool scatter)
      : Schedule(layout), scatter_(scatter), sent_(layout.ranks) {}

  void begin(RankId rank, Sends* sends) override {
    for (uint32_t i = 0; i < kAtOnce; i++) send(rank, sends);
  }
  void delivered(RankId rank, Sends* sends) override { send(rank, sends); }

  uint64_t expected(RankId rank) const override {
    if (scatter_) return layout_.block_bytes(rank) * (layout_.ranks - 1);
    return layout_.size - layout_.block_bytes(rank);
  }
  void parts(RankId, uint64_t note, std::vector<Part>* parts) const override {
    const auto block = static_cast<uint32_t>(note);
    parts->push_back({block, 0, layout_.block_bytes(block), scatter_});
  }

 private:
  void send(RankId rank, Sends* sends) {
    if (sent_[rank] + 1 >= layout_.ranks) return;
    const RankId to = after(rank, ++sent_[rank]);
    const uint32_t block = scatter_ ? to : rank;
    sends->push_back({to, layout_.block_bytes(block), block});
  }

  bool scatter_;
  std::vector<uint32_t> sent_;  // by rank, sends so far
};

}  // namespace

std::unique_ptr<Schedule> direct_all_gather(const Layout& layout) {
  return std::make_unique<Direct>(layout, false);
}
std::unique_ptr<Schedule> direct_reduce_scatter(const Layout& layout) {
  return std::make_unique<Direct>(layout, true);
}

}  // namespace mcast::sim
