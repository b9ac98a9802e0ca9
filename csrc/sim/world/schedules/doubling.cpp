// All-gathers in about log2 P steps. If the number of ranks is a power of two, in step k a rank and
// the one whose number differs in bit k exchange the 2^k blocks of their halves. For other numbers
// (Bruck), in step k a rank sends to the rank 2^k below it the blocks from its own on: 2^k of them,
// or as many as the receiver lacks. The step after k begins when the data of step k has arrived; a
// partner may be ahead.
//
// A note is the step.
#include <algorithm>
#include <bit>

#include "sim/world/schedules/schedules.h"

namespace mcast::sim {
namespace {

class Doubling final : public Schedule {
 public:
  explicit Doubling(const Layout& layout)
      : Schedule(layout),
        halves_(std::has_single_bit(layout.ranks)),
        steps_(static_cast<unsigned>(std::bit_width(layout.ranks - 1))),
        progress_(layout.ranks) {}

  void begin(RankId rank, Sends* sends) override { send(rank, 0, sends); }

  void arrived(RankId rank, uint64_t note, Sends* sends) override {
    Progress& mine = progress_[rank];
    mine.came |= 1u << note;
    while ((mine.came >> mine.step & 1u) != 0) {
      if (++mine.step < steps_) send(rank, mine.step, sends);
    }
  }

  uint64_t expected(RankId rank) const override { return layout_.size - layout_.block_bytes(rank); }

  void parts(RankId from, uint64_t note, std::vector<Part>* parts) const override {
    const Run run = run_of(from, static_cast<unsigned>(note));
    for (uint32_t i = 0; i < run.count; i++) {
      const uint32_t block = after(run.first, i);
      parts->push_back({block, 0, layout_.block_bytes(block), false});
    }
  }

 private:
  struct Progress {
    uint32_t came = 0;  // steps whose data has arrived, by bit
    unsigned step = 0;  // the step whose data is awaited
  };
  struct Run {  // a run of blocks, which may wrap around
    uint32_t first = 0, count = 0;
  };

  Run run_of(RankId rank, unsigned step) const {
    const uint32_t many = 1u << step;
    if (halves_) return {rank & ~(many - 1), many};
    return {rank, std::min(many, layout_.ranks - many)};
  }
  void send(RankId rank, unsigned step, Sends* sends) const {
    const Run run = run_of(rank, step);
    const RankId to = halves_ ? rank ^ (1u << step) : before(rank, 1u << step);
    sends->push_back({to, layout_.blocks_bytes(run.first, run.count), step});
  }

  bool halves_;
  unsigned steps_;
  std::vector<Progress> progress_;
};

}  // namespace

std::unique_ptr<Schedule> doubling_all_gather(const Layout& layout) {
  return std::make_unique<Doubling>(layout);
}

}  // namespace mcast::sim
