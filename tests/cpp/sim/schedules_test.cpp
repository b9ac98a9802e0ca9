// Schedules without a network: sends arrive in any order that keeps each pair's, and ranks begin at
// any time. In any order, a rank sends only data that it has, every byte reaches every rank once,
// and every contribution is in a reduction's result once.
#include "sim/world/schedules/schedules.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>

#include "base/rng.h"

namespace mcast::sim {
namespace {

constexpr Collective kCollectives[] = {Collective::kBroadcast, Collective::kAllGather,
                                       Collective::kReduceScatter, Collective::kAllReduce};

// Ranks, the data that they have, and the data in flight.
class Play {
 public:
  Play(Schedule& schedule, Collective op, uint64_t seed)
      : schedule_(schedule), op_(op), ranks_(schedule.layout().ranks), rng_(seed) {
    state_.resize(ranks_);
    for (RankId r = 0; r < ranks_; r++) waiting_.insert(r);
  }

  void run() {
    while (!waiting_.empty() || !ways_.empty()) {
      if (!waiting_.empty() && (ways_.empty() || rng_.chance(0.2))) {
        begin(pick(waiting_));
      } else {
        auto way = ways_.begin();
        std::advance(way, static_cast<ptrdiff_t>(rng_.below(ways_.size())));
        deliver(way->first);
      }
      if (testing::Test::HasFailure()) return;
    }
    for (RankId r = 0; r < ranks_; r++) check_end(r);
  }

 private:
  using Place = std::pair<uint32_t, uint64_t>;  // block, first byte
  using Ranks = std::set<RankId>;
  struct OnWay {
    Send send;
    std::vector<Part> parts;
    std::vector<Ranks> folded;  // by part
  };
  struct State {
    bool begun = false;
    uint64_t received = 0;
    std::vector<uint64_t> early;
    std::map<Place, uint64_t> has;  // whole bytes that arrived
    std::map<Place, Ranks> folded;  // besides its own contribution
  };

  RankId pick(const std::set<RankId>& from) {
    auto it = from.begin();
    std::advance(it, static_cast<ptrdiff_t>(rng_.below(from.size())));
    return *it;
  }

  void begin(RankId rank) {
    waiting_.erase(rank);
    state_[rank].begun = true;
    Sends sends;
    schedule_.begin(rank, &sends);
    for (const uint64_t note : state_[rank].early) schedule_.arrived(rank, note, &sends);
    take(rank, sends);
  }

  bool reduces() const {
    return op_ == Collective::kReduceScatter || op_ == Collective::kAllReduce;
  }

  // A send carries the data that the sender has at that moment.
  void take(RankId from, const Sends& sends) {
    for (const Send& send : sends) {
      ASSERT_NE(send.to, from);
      ASSERT_LT(send.to, ranks_);
      OnWay way{send, {}, {}};
      schedule_.parts(from, send.note, &way.parts);
      uint64_t bytes = 0;
      for (const Part& part : way.parts) {
        bytes += part.bytes;
        Ranks folded = state_[from].folded[{part.block, part.first}];
        folded.insert(from);
        way.folded.push_back(folded);
        if (!part.partial) check_has(from, part, folded);
      }
      ASSERT_EQ(bytes, send.bytes);
      ASSERT_GT(bytes, 0u);
      ways_[{from, send.to}].push_back(std::move(way));
    }
  }

  void check_has(RankId rank, const Part& part, const Ranks& folded) {
    if (part.block != (op_ == Collective::kBroadcast ? schedule_.layout().root : rank)) {
      const auto at = state_[rank].has.find({part.block, part.first});
      ASSERT_TRUE(at != state_[rank].has.end()) << "rank " << rank << " has no " << part.block;
      ASSERT_EQ(at->second, part.bytes);
    } else if (reduces()) {
      ASSERT_EQ(folded.size(), ranks_) << "its block is not whole yet";
    } else if (op_ == Collective::kBroadcast && rank != schedule_.layout().root) {
      ASSERT_EQ(state_[rank].has.count({part.block, part.first}), 1u);
    }
  }

  void deliver(std::pair<RankId, RankId> pair) {
    auto& queue = ways_[pair];
    const OnWay way = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) ways_.erase(pair);
    const auto [from, to] = pair;
    State& state = state_[to];
    state.received += way.send.bytes;
    for (size_t i = 0; i < way.parts.size(); i++) {
      const Part& part = way.parts[i];
      if (!part.partial) {
        ASSERT_TRUE(state.has.emplace(Place{part.block, part.first}, part.bytes).second)
            << "block " << part.block << " comes to rank " << to << " twice";
        continue;
      }
      Ranks& folded = state.folded[{part.block, part.first}];
      for (const RankId r : way.folded[i]) {
        ASSERT_NE(r, to);
        ASSERT_TRUE(folded.insert(r).second) << "rank " << r << " is folded twice";
      }
    }
    Sends sends;
    schedule_.delivered(from, &sends);
    take(from, sends);
    if (!state.begun) return state.early.push_back(way.send.note);
    sends.clear();
    schedule_.arrived(to, way.send.note, &sends);
    take(to, sends);
  }

  void check_end(RankId rank) {
    const Layout& layout = schedule_.layout();
    const State& state = state_[rank];
    EXPECT_EQ(state.received, schedule_.expected(rank));
    std::map<uint32_t, uint64_t> bytes;
    for (const auto& [place, count] : state.has) bytes[place.first] += count;
    for (uint32_t block = 0; block < ranks_; block++) {
      const bool here = block == (op_ == Collective::kBroadcast ? layout.root : rank);
      uint64_t want = layout.block_bytes(block);
      if (op_ == Collective::kBroadcast) want = block == layout.root ? layout.size : 0;
      if (op_ == Collective::kReduceScatter || (here && rank == block)) want = 0;
      EXPECT_EQ(bytes[block], want) << "block " << block << " at rank " << rank;
    }
    if (!reduces()) return;
    uint64_t places = 0;
    for (const auto& [place, folded] : state.folded) {
      if (place.first != rank) continue;
      places++;
      Ranks all = folded;
      all.insert(rank);
      EXPECT_EQ(all.size(), ranks_);
    }
    EXPECT_GT(places, 0u);
  }

  Schedule& schedule_;
  const Collective op_;
  const uint32_t ranks_;
  Rng rng_;
  std::vector<State> state_;
  std::set<RankId> waiting_;
  std::map<std::pair<RankId, RankId>, std::deque<OnWay>> ways_;
};

TEST(Schedules, EveryByteReachesEveryRankOnce) {
  size_t played = 0;
  for (const char* name : {"ring-schedule", "recursive-doubling", "binomial", "chain", "direct"}) {
    for (const Collective op : kCollectives) {
      if (!has_schedule(name, op)) continue;
      for (const uint32_t ranks : {2u, 3u, 4u, 5u, 8u, 13u, 16u, 21u}) {
        for (const uint64_t size : {uint64_t{ranks}, uint64_t{100'003}, uint64_t{900'000}}) {
          const Layout layout{ranks, size, ranks / 2};
          const auto schedule = make_schedule(name, op, layout);
          SCOPED_TRACE(std::string(name) + " " + std::to_string(static_cast<int>(op)) + " of " +
                       std::to_string(ranks) + " ranks, " + std::to_string(size) + " bytes");
          Play(*schedule, op, size + ranks).run();
          ASSERT_FALSE(HasFailure());
          played++;
        }
      }
    }
  }
  EXPECT_EQ(played, 8u * 8 * 3);
}

TEST(Schedules, BlocksAreEqualButForRounding) {
  for (const uint64_t size : {7u, 100u, 1u << 20}) {
    const Layout layout{7, size, 0};
    uint64_t sum = 0;
    for (uint32_t block = 0; block < 7; block++) {
      EXPECT_LE(layout.block_bytes(block), size / 7 + 1);
      EXPECT_GE(layout.block_bytes(block), size / 7);
      sum += layout.block_bytes(block);
    }
    EXPECT_EQ(sum, size);
    EXPECT_EQ(layout.blocks_bytes(5, 4), size - layout.blocks_bytes(2, 3));
  }
}

TEST(Schedules, MissingScheduleIsAnError) {
  EXPECT_EQ(make_schedule("chain", Collective::kAllGather, {4, 100, 0}), nullptr);
  EXPECT_EQ(make_schedule("mcast", Collective::kAllGather, {4, 100, 0}), nullptr);
}

}  // namespace
}  // namespace mcast::sim
