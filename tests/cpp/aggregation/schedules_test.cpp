// Random schedules of one station. Ranks post and contribute in any order, repeat themselves, read
// their frames late, and frames of other groups interfere. Every result has the bits of a fold in
// the agreed order and arrives once, and memory stays within its bound.
#include <gtest/gtest.h>

#include <bit>

#include "aggregation/station_world.h"
#include "support/seeds.h"

namespace mcast {
namespace {

using test::StationOptions;
using test::StationWorld;

constexpr Element kElements[] = {Element::kFloat64,  Element::kFloat32, Element::kFloat16,
                                 Element::kBFloat16, Element::kInt64,   Element::kInt32,
                                 Element::kInt16,    Element::kInt8,    Element::kUInt8,
                                 Element::kBool,     Element::kUInt16,  Element::kUInt64};

StationOptions some_options(Rng& rng) {
  StationOptions o;
  o.ranks = static_cast<uint32_t>(2 + rng.below(7));
  if (rng.chance(0.4)) {
    o.host_of = {0, 1};  // at least two hosts
    while (o.host_of.size() < o.ranks) {
      o.host_of.push_back(static_cast<uint32_t>(rng.below(o.ranks)));
    }
  }
  o.fold = rng.chance(0.5) ? FoldOrder::kTurn : FoldOrder::kRank;
  o.segment = 64 * (1 + rng.below(20));
  o.incast = 1024 + rng.below(200000);
  o.keep = rng.chance(0.5);
  o.share = static_cast<uint32_t>(1 + rng.below(3));
  o.dealt = rng.chance(0.5);
  o.deadline = static_cast<Nanos>(1 + rng.below(20)) * kMilli;
  return o;
}

void some_call(StationWorld& w, const StationOptions& o, Rng& rng) {
  const Element element = kElements[rng.below(std::size(kElements))];
  Reduction reduction = Reduction::kSum;
  do {
    reduction = static_cast<Reduction>(1 + rng.below(9));
  } while (!reducible(element, reduction));
  const wire::Kind kind = rng.chance(0.5) ? wire::Kind::kAllreduce : wire::Kind::kReduceScatter;
  const uint64_t most = 12 * o.segment * (kind == wire::Kind::kAllreduce ? o.ranks : 1);
  const size_t size = element_size(element);
  const uint64_t bytes = (1 + rng.below(most / size)) * size;
  const Sequence op = w.call(kind, element, reduction, bytes, rng.next());
  if (rng.chance(0.1)) w.refuse(op);
}

class Schedule {
 public:
  explicit Schedule(uint64_t seed)
      : rng_(seed), options_(some_options(rng_)), world_(options_), posted_(options_.ranks) {
    operations_ = static_cast<Sequence>(1 + rng_.below(5));
    for (Sequence op = 0; op < operations_; op++) some_call(world_, options_, rng_);
    slow_ = static_cast<Member>(rng_.below(options_.ranks));
    laziness_ = rng_.chance(0.5) ? 0 : 0.9;
  }

  std::string run() {
    for (int step = 0; step < 200000; step++) {
      const auto rank = static_cast<Member>(rng_.below(options_.ranks));
      // Rank 0 gets a report whenever a block has been idle for the deadline. If it is the slow
      // rank, it may read fewer frames than it gets as long as it is slow.
      if (rank == slow_ && step < 50000 && rng_.chance(laziness_)) continue;
      act(rank);
      if (!world_.wrong().empty()) return world_.wrong();
      if (world_.station().closed()) return "closed: " + *world_.station().closed();
      if (world_.all_done()) return verdict();
    }
    return "it does not end";
  }

 private:
  void act(Member rank) {
    switch (rng_.below(8)) {
      case 0:
        if (posted_[rank] < operations_) world_.open(rank, posted_[rank]++);
        return;
      case 1:
      case 2:
      case 3:
        world_.contribute_next(rank);
        return;
      case 4:
        return disturb(rank);
      case 5:
        return world_.turn(static_cast<Nanos>(rng_.below(kMilli)));
      default:
        return world_.take(rank, 1 + rng_.below(4));
    }
  }

  // Sends an earlier frame again, or a frame of another group.
  void disturb(Member rank) {
    if (posted_[rank] == 0 || !rng_.chance(0.5)) return;
    const auto op = static_cast<Sequence>(rng_.below(posted_[rank]));
    wire::FrameHeader h = world_.header(rank, wire::FrameType::kAggOpen, op);
    if (rng_.chance(0.3)) {
      h.group_tag ^= 1;
      return world_.send(rank, h, {});
    }
    if (rng_.chance(0.5)) return world_.open(rank, op);
    world_.repeat(rank, op, rng_);
  }

  std::string verdict() {
    if (world_.station().job()->operations() != 0) return "an operation is left";
    if (world_.station().job()->blocks() != 0) return "a block is left";
    return "";
  }

  Rng rng_;
  StationOptions options_;
  StationWorld world_;
  std::vector<Sequence> posted_;  // by rank
  Sequence operations_ = 0;
  Member slow_ = 0;
  double laziness_ = 0;
};

TEST(StationSchedules, BitsOfTheAgreedOrderAndEachResultOnce) {
  test::for_seeds(test::seeds(400), [](uint64_t seed) { return Schedule(seed).run(); });
}

}  // namespace
}  // namespace mcast
