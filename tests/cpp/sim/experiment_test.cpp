// Experiments: their reports and refusals. Schedules move exactly the bytes of their edges and take
// the time of a closed form on a clean star, and equal experiments give equal reports.
#include "sim/world/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "outcome.h"
#include "sim/network/routing.h"
#include "sim/world/report.h"

namespace mcast::sim {
namespace {

using testing::HasSubstr;

Amount crossings_of(const OpResult& result, TrafficClass what, const std::string& kind = "") {
  Amount sum;
  for (const LinkClassResult& links : result.links) {
    if (links.name.rfind(kind, 0) == 0) sum += links.sum.of[static_cast<size_t>(what)];
  }
  return sum;
}

// Number of links that a send crosses, as the network routes it.
class Crossings {
 public:
  explicit Crossings(const ExperimentSpec& spec)
      : topology_(spec.net.topology), router_(topology_, spec.seed, false), n_(spec.hosts) {}

  uint64_t hops(uint32_t from, uint32_t to) const {
    return router_.unicast(0, from % n_, to % n_, 1).length;
  }
  uint64_t ring() const {
    uint64_t sum = 0;
    for (uint32_t h = 0; h < n_; h++) sum += (n_ - 1) * hops(h, h + 1);
    return sum;
  }
  uint64_t doubling() const {
    uint64_t sum = 0;
    for (uint32_t step = 1; step < n_; step *= 2) {
      for (uint32_t h = 0; h < n_; h++) {
        sum += std::has_single_bit(n_) ? step * hops(h, h ^ step)
                                       : std::min(step, n_ - step) * hops(h, h + n_ - step);
      }
    }
    return sum;
  }
  uint64_t binomial() const {
    uint64_t sum = 0;
    for (uint32_t step = 1; step < n_; step *= 2) {
      for (uint32_t h = 0; h < std::min(step, n_ - step); h++) sum += hops(h, h + step);
    }
    return sum;
  }
  uint64_t chain() const {
    uint64_t sum = 0;
    for (uint32_t h = 0; h + 1 < n_; h++) sum += hops(h, h + 1);
    return sum;
  }
  uint64_t direct() const {
    uint64_t sum = 0;
    for (uint32_t h = 0; h < n_; h++) {
      for (uint32_t k = 1; k < n_; k++) sum += hops(h, h + k);
    }
    return sum;
  }

 private:
  Topology topology_;
  Router router_;
  uint32_t n_;
};

// A block is 15 full segments of a stream (mtu 4200), so its packets are known.
constexpr uint64_t kSegment = 4148, kSegments = 15, kOverhead = 90;

TEST(Experiments, SchedulesMoveTheBytesOfTheirEdges) {
  const std::string block = std::to_string(kSegment * kSegments);
  for (const std::string network :
       {"hosts=9", "hosts=32 topology=fattree:radix=8", "hosts=64 topology=fattree:radix=32,pod=32",
        "hosts=47 topology=leafspine:leaves=4,spines=3,links=2"}) {
    const Crossings edges(spec_of(network));
    // Links are so long that no queue delays a segment by two round trips, after which it would be
    // sent again.
    const std::string all = network + " delay=100us seed=5 ";
    const std::pair<std::string, uint64_t> cases[] = {
        {"op=all_gather algorithm=recursive-doubling block=", edges.doubling()},
        {"op=all_gather algorithm=ring-schedule block=", edges.ring()},
        {"op=reduce_scatter algorithm=ring block=", edges.ring()},
        {"op=all_reduce algorithm=ring block=", 2 * edges.ring()},
        {"op=all_gather algorithm=direct block=", edges.direct()},
        {"op=broadcast algorithm=binomial size=", edges.binomial()},
        {"op=broadcast algorithm=chain size=", edges.chain()}};
    for (const auto& [text, count] : cases) {
      const OpResult result = outcome_of(all + text + block);
      const Amount moved = crossings_of(result, TrafficClass::kRing);
      EXPECT_EQ(result.counters.at("stream_segments_again"), 0u) << all + text;
      EXPECT_EQ(moved.bytes - moved.packets * kOverhead, count * kSegment * kSegments)
          << all + text;
      uint64_t links = 0;
      for (const LinkClassResult& of : result.links) links += of.sum.all().bytes;
      EXPECT_EQ(links, result.fabric_bytes);
      EXPECT_EQ(result.fabric_bytes - moved.bytes, crossings_of(result, TrafficClass::kAck).bytes);
    }
  }
}

TEST(Experiments, TheNumbersOfThePaper) {
  const OpResult result = outcome_of(
      "hosts=188 topology=leafspine:leaves=12,spines=6,links=3 rate=56gbit op=all_gather "
      "algorithm=ring-schedule block=8296");
  const Amount moved = crossings_of(result, TrafficClass::kRing);
  EXPECT_EQ(moved.packets, 400u * 187 * 2);
  EXPECT_EQ(moved.bytes, 400u * 187 * (8296 + 2 * kOverhead));
  const Amount inner = crossings_of(result, TrafficClass::kRing, "leaf-spine");
  EXPECT_EQ(inner.packets, 24u * 187 * 2);
}

// Full links, plus the latency of the path.
TEST(Experiments, TimesOnACleanStarAreThoseOfClosedForms) {
  struct Case {
    const char* text;
    double multiple;  // of the bound
  };
  const Case cases[] = {{"op=all_gather algorithm=ring-schedule", 1},
                        {"op=reduce_scatter algorithm=ring", 1},
                        {"op=all_reduce algorithm=ring", 1},
                        {"op=all_gather algorithm=recursive-doubling", 1},
                        {"op=all_gather algorithm=direct", 1},
                        {"op=reduce_scatter algorithm=direct", 1},
                        {"op=broadcast algorithm=chain", 1},
                        {"op=broadcast algorithm=binomial", 3},
                        {"op=all_gather+reduce_scatter algorithm=ring", 1}};
  for (const Case& c : cases) {
    const std::string text = std::string("hosts=8 size=256M ") + c.text;
    const OpResult result = outcome_of(text);
    const double bound = static_cast<double>(bound_of(spec_of(text))) * c.multiple;
    EXPECT_GE(static_cast<double>(result.took()), bound * 0.998) << text;
    EXPECT_LE(static_cast<double>(result.took()), bound * 1.01 + 200e3) << text;
  }
}

TEST(Experiments, TheBoundIsWhatAHostMustReceive) {
  const double packet = 1 + 90.0 / 4148;
  const auto bound = [](const std::string& text) {
    return static_cast<double>(bound_of(spec_of(text)));
  };
  EXPECT_NEAR(bound("hosts=4 op=all_gather size=64M"), (48 << 20) * packet / 12.5, 1);
  EXPECT_NEAR(bound("hosts=4 ranks=2 op=broadcast size=64M"), (64 << 20) * packet / 12.5, 1);
  EXPECT_NEAR(bound("hosts=4 op=all_reduce size=64M rate=10gbit"), (96 << 20) * packet / 1.25, 1);
  EXPECT_NEAR(bound("hosts=4 op=all_gather+reduce_scatter block=1M planes=2"),
              (3 << 20) * packet / 12.5, 1);
  // Exchanges: the bytes that one host must receive, or send.
  for (const char* op : {"all_to_all", "gather", "scatter"}) {
    EXPECT_NEAR(bound(std::string("hosts=4 size=64M op=") + op), (48 << 20) * packet / 12.5, 1);
  }
  EXPECT_NEAR(bound("hosts=4 ranks=2 op=all_to_all size=8M"), (12 << 20) * packet / 12.5, 1);
  EXPECT_NEAR(bound("hosts=4 ranks=2 op=gather size=8M"), (6 << 20) * packet / 12.5, 1);
}

// In units of all bytes at the rate of a worker's link; docs/aggregation.md has these fractions.
TEST(Experiments, TheBoundWithAggregatorsIsThePlanners) {
  const double whole = (64 << 20) * (1 + 90.0 / 4148) / 12.5;
  const auto bound = [&](const std::string& more) {
    const std::string text = "size=64M algorithm=mcast-aggregators fold=turn " + more;
    return static_cast<double>(bound_of(spec_of(text))) / whole;
  };
  EXPECT_NEAR(bound("hosts=8 op=all_reduce aggregators=7"), 1, 1e-4);
  EXPECT_NEAR(bound("hosts=8 op=all_reduce aggregators=4"), 1.225, 1e-4);
  EXPECT_NEAR(bound("hosts=8 op=all_reduce aggregators=2 aggregator_rate=200gbit"), 1.225, 1e-4);
  EXPECT_NEAR(bound("hosts=8 ranks=2 op=all_reduce aggregators=4"), 1.225, 1e-4)
      << "ranks of a host fold first";
  EXPECT_NEAR(bound("hosts=8 op=reduce_scatter aggregators=7"), 9.0 / 8 * 7 / 8, 1e-3)
      << "nothing beside it, and no longer than the planner's care allows";
  EXPECT_NEAR(bound("hosts=8 op=all_reduce aggregators=7 aggregate=off"), 1.75, 1e-4);
  EXPECT_NEAR(bound("hosts=64 op=all_reduce aggregators=2"), 2 * 63.0 / 64, 1e-4) << "not worth it";
  EXPECT_NEAR(bound("hosts=8 op=reduce_scatter aggregators=7 aggregate=off"), 7.0 / 8, 1e-4);
  const Served served = served_by_aggregators(
      spec_of("hosts=64 op=all_reduce algorithm=mcast-aggregators aggregators=2 fold=turn"));
  EXPECT_EQ(served.part, 0);
  EXPECT_EQ(served.reason, "the gain is less than the cost");
}

TEST(Experiments, TrainsAreShortEnoughForASlowLink) {
  const ExperimentSpec spec = spec_of("hosts=4 size=64K slow=2:0.1 rate=10gbit");
  EventQueue events;
  struct Nobody final : FabricSink {
    void on_train(HostId, const TrainRef&, uint64_t, bool) override {}
    void on_departure(const Train&) override {}
  } nobody;
  Fabric fabric(fabric_of(spec).links, events, nobody);
  EXPECT_EQ(fabric.train_limit(), 25'000u);
  set_link_faults(spec, fabric);
  EXPECT_EQ(fabric.train_limit(), 2'500u) << "20 us at 1 Gbit/s";
  EXPECT_EQ(fabric.port(fabric.topology().host_link(0, 2)).spec().rate, 125e6);
  EXPECT_EQ(fabric.port(fabric.topology().host_link(0, 1)).spec().rate, 1.25e9);
}

TEST(Experiments, EqualOnesGiveEqualReports) {
  for (const char* text :
       {"hosts=12 topology=leafspine:leaves=3,spines=2 algorithm=direct size=4M loss=1e-3 burst=2",
        "hosts=6 ranks=2 algorithm=ring-schedule size=2M order=random late=3:1ms slow=5:0.25",
        "hosts=8 algorithm=direct size=4M background=load=0.3,size=256K queue=200K",
        "hosts=6 algorithm=mcast size=2M loss=1e-3", "hosts=6 algorithm=ring size=2M"}) {
    const std::string first = report_json(spec_of(text), outcome_of(text), {});
    EXPECT_EQ(first, report_json(spec_of(text), outcome_of(text), {}));
    const std::string other = std::string(text) + " seed=9";
    EXPECT_NE(first, report_json(spec_of(other), outcome_of(other), {}));
    for (const char* key : {"\"schema\":2", "\"trace_hash\":\"", "\"per_rank\":[", "\"hottest\":{",
                            "\"host-leaf up\":{", "\"timeline\":{", "\"framing\":{"}) {
      EXPECT_THAT(first, HasSubstr(key));
    }
  }
}

TEST(Experiments, FaultsCostTime) {
  const auto took = [](const std::string& more) {
    return outcome_of("hosts=8 size=8M algorithm=ring-schedule " + more).took();
  };
  const Nanos clean = took("");
  EXPECT_GT(took("loss=0.01"), clean);
  EXPECT_GT(took("slow=3:0.5"), clean * 3 / 2);
  EXPECT_NEAR(static_cast<double>(took("late=5:3ms")), static_cast<double>(clean + 3 * kMilli),
              7e5);
  EXPECT_GT(took("background=load=0.5,size=1M"), clean * 11 / 10);
  EXPECT_LT(took("rate=200gbit"), clean * 3 / 4);
}

TEST(Experiments, TheEngineMovesEachBlockOnceOverEachLinkOfItsTree) {
  const std::string text = "hosts=12 topology=leafspine:leaves=3,spines=2 block=64K op=all_gather";
  const OpResult result = outcome_of(text);
  const Amount data = crossings_of(result, TrafficClass::kData);
  EXPECT_EQ(data.packets, 15u * 12 * 16) << "12 hosts and 3 leaves, 16 chunks of each";
  EXPECT_EQ(data.bytes, data.packets * 4194);
  EXPECT_EQ(result.counters.at("chunks_placed"), 12u * 11 * 16);
  EXPECT_GT(result.frames.most, 0u);
  const OpResult ring = outcome_of(text + " algorithm=ring");
  EXPECT_EQ(crossings_of(ring, TrafficClass::kRepair).packets, 0u);
  EXPECT_GT(crossings_of(ring, TrafficClass::kRing).bytes, 30u * 11 * 65536);
}

TEST(Experiments, TheEngineFillsACleanLink) {
  // Ranks of one host share its link, and pass each other the parts that they receive.
  const std::pair<const char*, double> cases[] = {{"broadcast", 1.25},
                                                  {"all_gather", 1.25},
                                                  {"all_to_all", 1.25},
                                                  {"gather", 1.1},
                                                  {"scatter", 1.1},
                                                  {"all_to_all ranks=2 rate=10gbit", 1.1},
                                                  {"all_to_all algorithm=ring", 1.25},
                                                  {"broadcast ranks=2", 1.6},
                                                  {"all_gather ranks=2", 1.6}};
  for (const auto& [op, most] : cases) {
    const std::string text = std::string("hosts=8 size=16M op=") + op;
    const OpResult result = outcome_of(text);
    EXPECT_LT(static_cast<double>(result.took()),
              most * static_cast<double>(bound_of(spec_of(text))))
        << op;
    EXPECT_GE(result.took(), bound_of(spec_of(text)));
  }
}

TEST(Experiments, ExchangesThatNeedTooMuchMemoryAreRefused) {
  const auto result = run_experiment(spec_of("hosts=64 op=all_to_all size=64M"));
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("8 GiB in all, at most 6"));
}

TEST(Experiments, BadOnesAreRefusedInOneLine) {
  for (const char* text : {"hosts",
                           "hosts=1",
                           "hosts=x",
                           "hosts=99999999",
                           "ranks=0",
                           "what=3",
                           "window=much",
                           "rate=fast",
                           "op=gathers",
                           "op=all_to_all algorithm=direct",
                           "op=all_gather+",
                           "op=all_gather+all_reduce+broadcast",
                           "size=0",
                           "size=3",
                           "block=0",
                           "op=broadcast block=64K",
                           "algorithm=tree",
                           "algorithm=chain",
                           "op=all_reduce algorithm=direct",
                           "op=broadcast algorithm=mcast-aggregators aggregators=2",
                           "op=all_reduce+all_gather algorithm=mcast-aggregators aggregators=2",
                           "op=all_reduce+all_reduce algorithm=mcast-aggregators aggregators=2",
                           "op=reduce_scatter+broadcast algorithm=mcast-aggregators aggregators=2",
                           "mtu=100",
                           "chunk=100",
                           "chunk=8192",
                           "root=8",
                           "late=9:1ms",
                           "late=1",
                           "late=1:1",
                           "slow=1:2",
                           "slow=9:0.5",
                           "loss=2",
                           "loss=0.1@pod-core",
                           "burst=0",
                           "background=load=2",
                           "background=0.3",
                           "topology=mesh",
                           "topology=fattree:radix=5",
                           "planes=0",
                           "trees=both",
                           "order=up",
                           "train=65",
                           "delay=0",
                           "wake=3",
                           "lossless=yes",
                           "seed=-1",
                           "topology="}) {
    const auto spec = ExperimentSpec::parse(text);
    ASSERT_FALSE(spec.ok()) << text;
    const std::string& why = spec.status().message();
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
    EXPECT_THAT(why, testing::AnyOf(HasSubstr("\""), HasSubstr("topology: "))) << text;
    EXPECT_THAT(error_json(text, spec.status()), HasSubstr("\"error\":"));
  }
}

TEST(Experiments, LossesAreWhereTheyShouldBe) {
  EXPECT_TRUE(loss_is_at("leaf-spine up", ""));
  EXPECT_TRUE(loss_is_at("leaf-spine up", "leaf-spine"));
  EXPECT_TRUE(loss_is_at("leaf-spine up", "leaf-spine-up"));
  EXPECT_FALSE(loss_is_at("leaf-spine up", "leaf-spine-down"));
  EXPECT_FALSE(loss_is_at("leaf-spine up", "leaf"));
  const OpResult result = outcome_of(
      "hosts=8 topology=leafspine:leaves=2,spines=2 algorithm=direct size=8M "
      "loss=0.01@leaf-spine-down");
  for (const LinkClassResult& links : result.links) {
    EXPECT_EQ(links.sum.lost_fault > 0, links.name == "leaf-spine down") << links.name;
  }
}

TEST(Experiments, LinksHaveNames) {
  const Topology topology(spec_of("hosts=8 topology=leafspine:leaves=2,spines=3").net.topology);
  EXPECT_EQ(link_name(topology, topology.host_link(0, 5)), "h5 up");
  EXPECT_EQ(link_name(topology, Topology::reverse(topology.host_link(0, 5))), "h5 down");
  const LinkId up = topology.up_link(0, 2, 1, 2, 0);
  EXPECT_EQ(link_name(topology, up), "leaf 1 to spine 2");
  EXPECT_EQ(link_name(topology, Topology::reverse(up)), "spine 2 to leaf 1");
}

}  // namespace
}  // namespace mcast::sim
