// Random programs on groups with stations, while stations die, stop, stall, decline or lose a rank.
// Invariants: the bits are those of the model's fold; a group does not fail whatever happens to its
// stations; every operation ends and is released. A failing seed can be repeated alone:
// MCAST_TEST_SEED=1234 mcast_test_aggregation --gtest_filter='AggregationSchedules*'
#include <map>
#include <sstream>

#include "aggregation/station_cluster.h"
#include "base/rng.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

template <typename T>
T one_of(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[rng.below(values.size())];
}

class StationRunner {
 public:
  explicit StationRunner(uint64_t seed, bool tree = false)
      : rng_(seed ^ 0x7374617473ULL), o_(options(seed)) {
    if (tree) pick_racks();
  }

  struct Seen {
    uint64_t results = 0, diverted = 0, lost = 0;
  };
  // Returns "" or the error, and adds the stations' work to `seen`.
  std::string run(Seen& seen) {
    cluster_.emplace(o_);
    size_t stations = one_of<size_t>(rng_, {1, 2, 2, 7});
    std::vector<std::string> racks;
    if (!o_.racks.empty()) racks = pick_tree(stations);
    std::vector<uint32_t> capacities;
    for (size_t j = 0; j < stations; j++) {
      capacities.push_back(one_of<uint32_t>(rng_, {65536, 65536, 20000, 200000}));
    }
    cluster_->add_stations(capacities, 1, 0, racks);
    text_ << o_.ranks << " ranks on " << (o_.group.host_of.empty() ? "as many" : "fewer")
          << " hosts, " << stations << " stations" << (o_.group.multicast.wanted ? "" : ", ring");
    for (const std::string& rack : o_.racks) text_ << " " << (rack.empty() ? "-" : rack);
    for (const std::string& rack : racks) text_ << " +" << rack;
    post();
    for (uint64_t n = rng_.below(4); n > 0; n--) trouble();
    const bool ended = cluster_->run([&] { return all_done(runs_) && quiet(); }, 100 * kSecond);
    seen.results += cluster_->total(Counter::agg_results);
    seen.diverted += cluster_->total(Counter::agg_diverted);
    seen.lost += cluster_->total(Counter::agg_lost);
    const std::string wrong = verdict(ended);
    return wrong.empty() ? "" : wrong + "\n  " + text_.str();
  }

 private:
  ClusterOptions options(uint64_t seed) {
    ClusterOptions o;
    o.ranks = static_cast<uint32_t>(3 + rng_.below(5));
    o.net.seed = seed;
    o.net.max_datagram = 8192 + wire::kDatagramHeader;
    o.net.stream_latency = one_of<Nanos>(rng_, {50 * kMicro, 10 * kMicro, 2 * kMilli});
    o.net.stream_rate = one_of<double>(rng_, {0, 0, 1.25e8});
    o.net.jitter = one_of<Nanos>(rng_, {0, 5 * kMicro, 100 * kMicro});
    GroupParams& p = o.group;
    p.lane = 1;
    p.arity = one_of<uint32_t>(rng_, {2, 3, 32});
    p.agreed.chunk = 8192;
    p.agreed.incast = one_of<size_t>(rng_, {65536, 65536, 262144});
    p.agreed.aggregate = one_of(rng_, {AggregateMode::kBoth, AggregateMode::kCareful});
    p.agreed.fold = one_of(rng_, {FoldOrder::kRank, FoldOrder::kTurn});
    p.multicast.wanted = rng_.chance(0.7);
    p.aggregator_patience = one_of<Nanos>(rng_, {kSecond, 20 * kMilli});
    if (o.ranks >= 4 && rng_.chance(0.3)) {
      const auto hosts = static_cast<uint32_t>(3 + rng_.below(o.ranks - 3));
      for (uint32_t r = 0; r < o.ranks; r++) p.host_of.push_back(r % hosts);
    }
    o.sleepy = rng_.chance(0.3);
    if (rng_.chance(0.5)) {
      o.clock = [seed](Member r) { return static_cast<Nanos>(mix64(seed + r) >> 8); };
    }
    return o;
  }

  // Draws the racks of the ranks; ranks of one host share a rack.
  void pick_racks() {
    const auto names = 2 + rng_.below(3);
    static constexpr const char* kRackNames[] = {"A", "B", "C", ""};
    std::map<uint32_t, std::string> of_host;
    for (uint32_t r = 0; r < o_.ranks; r++) {
      const uint32_t host = o_.group.host_of.empty() ? r : o_.group.host_of[r];
      const char* const name = kRackNames[rng_.below(names)];
      o_.racks.push_back(of_host.try_emplace(host, name).first->second);
    }
  }

  // Draws the racks of the stations: usually at least one at the top, leaves at random.
  std::vector<std::string> pick_tree(size_t& stations) {
    stations = 1 + rng_.below(7);
    std::vector<std::string> racks;
    for (size_t j = 0; j < stations; j++) {
      racks.push_back(one_of<std::string>(rng_, {"A", "B", "C", "top", ""}));
    }
    if (rng_.chance(0.9)) racks[rng_.below(stations)] = "top";
    return racks;
  }

  // Posts the same operations at every rank, each rank at its own times.
  void post() {
    const auto pace = one_of<Nanos>(rng_, {0, kMilli, 30 * kMilli});
    std::vector<Nanos> at(o_.ranks);
    runs_.reserve(o_.ranks * 8);
    for (uint64_t id = 1 + rng_.below(2), n = 1 + rng_.below(4); n > 0; n--, id++) {
      wire::Descriptor d;
      Element element;
      Reduction reduction;
      do {
        element = static_cast<Element>(1 + rng_.below(10));
        reduction = static_cast<Reduction>(1 + rng_.below(9));
      } while (!reducible(element, reduction));
      const bool scatter = rng_.chance(0.4);
      size_t bytes = rng_.chance(0.15) ? 1 + rng_.below(9000) : (1 << 20) + rng_.below(400'000);
      if (scatter) bytes = bytes / o_.ranks + element_size(element);
      bytes -= bytes % element_size(element);
      d = {scatter ? wire::Kind::kReduceScatter : wire::Kind::kAllreduce,
           static_cast<uint8_t>(element), kNoMember, bytes, ""};
      d.reduction = static_cast<uint8_t>(reduction);
      text_ << "; " << wire::kind_name(d.kind) << "(" << bytes << " " << reduction_name(reduction)
            << " " << element_name(element) << (id % 2 == 0 ? " in place)" : ")");
      const size_t first = runs_.size();
      runs_.resize(first + o_.ranks, std::make_shared<OpRun>());
      for (Member r = 0; r < o_.ranks; r++) {
        if (pace > 0) at[r] += static_cast<Nanos>(rng_.below(static_cast<uint64_t>(pace)));
        cluster_->at(cluster_->now() + at[r], [this, d, r, id, slot = first + r] {
          runs_[slot] = cluster_->call(r, d, id);
        });
      }
    }
  }

  void trouble() {
    const size_t j = rng_.below(cluster_->stations());
    const auto rank = static_cast<Member>(rng_.below(o_.ranks));
    const Nanos when =
        cluster_->now() +
        static_cast<Nanos>(rng_.below(one_of<uint64_t>(rng_, {5 * kMilli, 100 * kMilli})));
    const auto length = static_cast<Nanos>(rng_.below(3 * kSecond));
    const size_t end = cluster_->station(j).endpoint();
    switch (rng_.below(o_.racks.empty() ? 6 : 7)) {
      case 0:
        text_ << "; station " << j << " dies";
        cluster_->at(when, [this, j] { cluster_->kill_station(j); });
        break;
      case 1:
        text_ << "; station " << j << " loses rank " << rank;
        cluster_->at(when, [this, end, rank] { cluster_->net().reset(rank, end); });
        break;
      case 2:
        text_ << "; station " << j << " stops";
        cluster_->at(when, [this, j] { cluster_->stop_station(j, true); });
        cluster_->at(when + length, [this, j] {
          if (!cluster_->station(j).spent()) cluster_->stop_station(j, false);
        });
        break;
      case 3:
        text_ << "; station " << j << " is cut off";
        cluster_->at(when, [this, end] { cluster_->net().isolate(end); });
        cluster_->at(when + length, [this, end] { cluster_->net().heal(end); });
        break;
      case 4:
        text_ << "; station " << j << " declines";
        cluster_->at(when, [this, j] { cluster_->station(j).declines = true; });
        break;
      case 6: {
        const size_t other = cluster_->station(rng_.below(cluster_->stations())).endpoint();
        text_ << "; stations " << j << " and " << other - o_.ranks << " part";
        if (other == end) break;
        cluster_->at(when, [this, end, other] { cluster_->net().reset(end, other); });
        break;
      }
      default:
        cluster_->station(j).last = rng_.below(200);
        text_ << "; station " << j << " dies after " << cluster_->station(j).last << " frames";
    }
  }

  bool quiet() {
    for (Member r = 0; r < o_.ranks; r++) {
      if (!cluster_->group(r).core().quiet()) return false;
    }
    return true;
  }

  std::string verdict(bool ended) {
    for (const auto& run : runs_) {
      const std::string where =
          "op " + std::to_string(run->id) + " at rank " + std::to_string(run->rank) + ": ";
      if (run->calls != 1) return where + "completed " + std::to_string(run->calls) + " times";
      if (!run->status.ok()) return where + run->status.to_string();
      if (const std::string wrong = run->check(o_.ranks); !wrong.empty()) return where + wrong;
    }
    if (!ended) return "not released";
    if (cluster_->spins() > 3) return "a lane span past its deadline";
    return "";
  }

  Rng rng_;
  ClusterOptions o_;
  std::optional<StationCluster> cluster_;
  Runs runs_;
  std::ostringstream text_;
};

class AggregationSchedules : public testing::TestWithParam<int> {};

TEST_P(AggregationSchedules, KeepTheBitsWhateverHappensToStations) {
  StationRunner::Seen seen;
  const Seeds all = seeds(60, static_cast<uint64_t>(GetParam()));
  for_seeds(all, [&](uint64_t seed) { return StationRunner(seed).run(seen); });
  if (all.size() < 60) return;                 // fewer seeds may miss some
  EXPECT_GT(seen.results, seen.diverted / 4);  // stations fold a good part
  EXPECT_GT(seen.diverted, 0u);
  EXPECT_GT(seen.lost, 0u);
}
INSTANTIATE_TEST_SUITE_P(Shard, AggregationSchedules, testing::Range(0, 2));

class TreeSchedules : public testing::TestWithParam<int> {};

TEST_P(TreeSchedules, KeepTheBitsWhateverHappensToStations) {
  StationRunner::Seen seen;
  const Seeds all = seeds(60, static_cast<uint64_t>(GetParam()));
  for_seeds(all, [&](uint64_t seed) { return StationRunner(seed, true).run(seen); });
  if (all.size() < 60) return;                 // fewer seeds may miss some
  EXPECT_GT(seen.results, seen.diverted / 4);  // stations fold a good part
  EXPECT_GT(seen.diverted, 0u);
  EXPECT_GT(seen.lost, 0u);
}
INSTANTIATE_TEST_SUITE_P(Shard, TreeSchedules, testing::Range(0, 2));

}  // namespace
}  // namespace mcast::test
