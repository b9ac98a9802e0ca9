// A simulated world: hosts on a network, on each some ranks with both lanes of the engine, groups
// made by real agreement and a real probe, operations on real memory that is checked when they are
// done. Time is virtual: a run depends on the specification and on nothing else.
//
// Ranks of one host share memory unless settings say otherwise: groups of theirs have no network,
// groups of several hosts fold within them first and move large blocks by rails, as in the product.
// Subgroups have lanes of their own.
//
// Aggregators have hosts of their own; groups have them unless settings name others.
//
// Not modelled: the store and its latency, the caller's own work.
// Threads: one.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/element.h"
#include "engine/network_group.h"
#include "simulation/aggregators.h"
#include "simulation/content.h"
#include "simulation/contents.h"
#include "simulation/sim_clock.h"
#include "simulation/sim_host_group.h"
#include "simulation/sim_lane.h"
#include "simulation/sim_security.h"
#include "transport/sim/heap_meter.h"
#include "transport/sim/sim_network.h"

namespace mcast::sim {

// What a datagram of the engine carries, by its header.
TrafficClass class_of_datagram(ConstBytes datagram);

struct WorldSpec {
  uint32_t hosts = 2;
  uint32_t ranks = 1;         // of each host: rank r is on host r / ranks, or
  std::vector<HostId> order;  // of hosts: on order[r / ranks]
  uint64_t seed = 1;
  SimOptions net;  // with a fabric, whose topology has as many hosts
  Config config;   // settings of all ranks
  LaneCosts costs;
  std::function<LaneCosts(uint32_t rank)> costs_of;  // null: `costs` for all
  // Of large worlds: ranks keep ledgers instead of memory (content.h, contributions.h). Reductions
  // have memory where ranks of a host fold first, and where Contributions::serve() says no.
  bool ledgers = false;
  std::function<SimClock(uint32_t rank)> clock;  // null: all show the world's time
  std::vector<AggregatorSpec> aggregators;       // at hosts that no rank is on
  WorldGuarding guarding;  // where `config` says so; all groups of a world have one mode
};

// One call, the same at all ranks that are to agree.
struct Operation {
  wire::Kind kind = wire::Kind::kBarrier;
  uint64_t id = 0;      // names its content: different for each call of a world
  size_t bytes = 0;     // of a block: a broadcast's or an all_reduce's all, else one rank's
  uint64_t splits = 0;  // of an all_to_all, whose blocks may differ (exchange_content.h)
  Member root = 0;
  Reducing how{Element::kInt32, Reduction::kSum, 1};
  Nanos timeout = 1800 * kSecond;
};

// What one member of a group sends to another. The id names its content, as an operation's.
struct Message {
  uint64_t id = 0;
  size_t bytes = 0;
  Member from = 0, to = 0;
  uint32_t tag = 0;
  bool any = false;  // it is received from anybody
  Nanos timeout = 1800 * kSecond;
};

// What became of it at one rank. Times are the world's.
struct Outcome {
  Operation operation;
  Member member = 0;
  int ends = 0;  // 1: it is over
  Status status;
  Nanos posted = 0, done = kNever;
  std::string wrong;  // of its bytes, when it was done; "" nothing

  bool over() const { return ends > 0; }
  bool good() const { return ends == 1 && status.ok() && wrong.empty(); }
};

class World final : private SimNetwork::Listener, private Surroundings {
 public:
  using GroupId = size_t;

  // The specification's topology must fit its hosts; guarded ones need an ok() of load_library().
  explicit World(WorldSpec spec);
  ~World() override;

  const WorldSpec& spec() const { return spec_; }
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  Nanos now() const override { return network_.now(); }
  SimNetwork& network() { return network_; }
  const SimNetwork& network() const { return network_; }
  Aggregators& aggregators() { return aggregators_; }
  // What all endpoints have sent for being guarded.
  GuardTotals guard_totals() const;
  // `number`: 0, or of a subgroup's multicast lane.
  SimLane& lane(uint32_t rank, LaneId id, uint32_t number = 0) {
    return *lanes_of(rank, number)[id];
  }
  // A rank's endpoints: its multicast lane's, its reduce lane's, those of its subgroups.
  std::vector<size_t> endpoints(uint32_t rank) const;
  uint32_t rank_at(size_t endpoint) const { return lanes_[endpoint].rank; }
  SimTransport& endpoint(size_t number) { return lanes_[number].lane->endpoint(); }
  // By number of endpoint; null: it is no rank's. Those after the last one are none either.
  std::vector<SimLane*> lanes() const;

  // Begins to make a group of these ranks; `config`: of all of them, if not the world's; `ready`
  // runs once for each member that lives, maybe in this call, when it has the group with its parts
  // or knows why not.
  using Ready = std::function<void(Member)>;
  // `absent`: these have published their records and never make it; where ranks of a host share no
  // memory.
  GroupId make_group(const std::vector<uint32_t>& ranks, const Config* config = nullptr,
                     Ready ready = {}, std::vector<Member> absent = {});
  GroupId make_group();  // of all ranks
  // So many have been begun, parts included: the number of the next one.
  GroupId groups() const { return groups_.size(); }
  // All members that live have it, with its parts, or know why they have not.
  bool made(GroupId g) const { return groups_[g].waiting == 0 && groups_[g].parts_waiting == 0; }
  const Status& making(GroupId g, Member m) const { return groups_[g].members[m].making; }
  uint32_t size(GroupId g) const { return static_cast<uint32_t>(groups_[g].members.size()); }
  uint32_t rank(GroupId g, Member m) const { return groups_[g].members[m].rank; }
  GroupBase& group(GroupId g, Member m) { return *groups_[g].members[m].group; }
  // The groups that it is made of: rails and those of hosts, or subgroups.
  const std::vector<GroupId>& parts(GroupId g) const { return groups_[g].parts; }
  // The group's state machine on one of its lanes; null: it has left, or has no network.
  GroupCore* core(GroupId g, Member m, LaneId id);
  // Of all members, with its parts.
  uint64_t total(GroupId g, Counter counter) const;
  // Adds to each rank's place the most bytes that its group and the group's parts have staged since
  // this was asked last, the sum over these and their lanes.
  void take_staged_peaks(GroupId g, std::vector<uint64_t>* by_rank);

  // Of a group that is made. What is refused is over at once. `then`, if any, runs when it is over,
  // where the engine says so, and may post more; not if it was refused.
  using Then = std::function<void(const Outcome&)>;
  std::shared_ptr<const Outcome> post(GroupId g, Member m, const Operation& operation,
                                      Then then = {});
  // Its send or its receive; likewise.
  std::shared_ptr<const Outcome> post_message(GroupId g, const Message& message, bool receives,
                                              Then then = {});
  // Everywhere; by member.
  std::vector<std::shared_ptr<const Outcome>> post_all(GroupId g, const Operation& operation);
  // Begins to leave the group at all members; closed(): all that live have.
  void close(GroupId g, Nanos limit);
  bool closed(GroupId g) const;

  // Runs `action` when the time comes.
  void at(Nanos when, std::function<void()> action) override {
    network_.schedule(when, std::move(action));
  }
  // Lets things happen until `until()` or for `limit`; returns until(). If nothing can happen any
  // more before that, standstill() says so.
  template <typename Until>
  bool run(Until until, Nanos limit);
  bool standstill() const { return network_.next() == kNever; }

  // A process that does not run for a while; one that dies; one that ends in order, which has
  // closed all its groups, and is killed() from then on; a clock that jumps ahead.
  void pause(uint32_t rank, bool paused);
  void kill(uint32_t rank);
  void exit(uint32_t rank);
  bool killed(uint32_t rank) const override { return ranks_[rank].killed; }
  bool paused(uint32_t rank) const override { return ranks_[rank].paused; }
  void jump(uint32_t rank, Nanos by);

  // Of everything that happened: equal for equal runs of one build.
  uint64_t trace_hash() const;
  uint64_t most_spins() const;
  // Books what the engine allocates for a rank; outlives the world. Null: nobody. What the world
  // itself and the network need is nobody's.
  void set_meter(HeapMeter* meter) {
    meter_ = meter;
    network_.set_meter(meter);
  }
  // Nobody has the groups any more, all of which are closed: nothing can be asked of them.
  void let_go();

 private:
  struct Rank {
    SimClock clock;
    // The first pair is everybody's; others have the multicast lane of a subgroup.
    std::vector<PerLane<std::shared_ptr<SimLane>>> lanes;
    // Bytes, by all its multicast lanes (LaneAccounts).
    std::shared_ptr<std::atomic<uint64_t>> arrived = std::make_shared<std::atomic<uint64_t>>(0);
    bool killed = false, paused = false, exited = false;
  };
  // How a group is made; parts differ in all but the settings' text.
  struct Making {
    std::string name;
    std::vector<uint32_t> ranks;
    std::vector<Member> absent;
    Config config;
    uint32_t part_index = 0, link_sharers = 1, lane = 0;
    std::optional<GroupId> whole;  // of a part
    Ready ready;
  };
  struct GroupMember {
    uint32_t rank = 0;
    std::shared_ptr<GroupBase> group;
    NetworkGroup* on_network = nullptr;  // the same, or
    SimHostGroup* on_host = nullptr;
    Agreement agreement;               // without the addresses
    bool ready = false, told = false;  // what became of its making is known; to its user too
    Status making;
    bool stations = false, asked = false;  // may have stations; waits for the first
    bool closing = false;                  // and is not over
  };
  struct Members {
    Making how;
    std::vector<GroupMember> members;
    uint32_t waiting = 0;  // members that do not know yet what became of its making
    uint32_t parts_waiting = 0;
    std::vector<GroupId> parts;
    std::vector<uint32_t> host_of;  // by member
    bool host_reads = false;        // ranks of a host fold first
    bool rails = false;             // its parts are rails and hosts, else subgroups
    bool in_parts = false;          // it is to have parts
  };
  // A call's memory at one rank, until it is over.
  struct Memory {
    std::shared_ptr<Pages> pages, input;
    std::shared_ptr<const Reference> reference;
    std::shared_ptr<const Contributions> contributions;
    std::shared_ptr<Ledger> ledger;
  };

  void on_news(size_t endpoint) override;
  void on_turn(uint32_t what) override;
  void add_rank(uint32_t rank);
  void look_again(uint32_t rank);
  HostId host_of(uint32_t rank) const {
    return spec_.order.empty() ? rank / spec_.ranks : spec_.order[rank / spec_.ranks];
  }
  void add_lane(uint32_t rank, LaneId id, std::shared_ptr<SimLane>& lane);
  PerLane<std::shared_ptr<SimLane>>& lanes_of(uint32_t rank, uint32_t number);
  const PeerProcess& memory() const override { return memory_; }

  // world_groups.cpp
  RankRecord record_of(uint32_t rank, const Making& how);
  GroupId begin(Making how);
  GroupSpec spec_of(GroupId g, Member m) const;
  void open(GroupId g, Member m, const Roster& roster);
  void open_on_host(GroupId g);
  void settle(GroupId g, Member m, const Status& probed);
  void settled(GroupId g);
  void begin_parts(GroupId g);
  void lay_rails(GroupId g);
  void part_made(GroupId g);
  void whole_ready(GroupId g);
  std::unique_ptr<Split> split_of(GroupId g, Member m) const;

  // world_post.cpp
  Result<Sequence> carry_out(GroupId g, Member m, const Operation& op, PostOptions options,
                             Memory& memory);
  Result<Sequence> move_bytes(GroupId g, Member m, const Operation& op, PostOptions options,
                              Memory& memory);
  Result<Sequence> reduce(GroupId g, Member m, const Operation& op, PostOptions options,
                          Memory& memory);
  std::shared_ptr<const Contributions> contributions_of(GroupId g, Member m, const Operation& op);
  std::string verdict(GroupId g, Member m, const Operation& op, const Memory& memory) const;

  const WorldSpec spec_;
  SimSecurity security_;
  SimNetwork network_;
  Rng rng_;
  Aggregators aggregators_;
  std::vector<Rank> ranks_;
  struct LaneAt {
    SimLane* lane = nullptr;  // null: another's endpoint
    uint32_t rank = 0;
  };
  std::vector<LaneAt> lanes_;  // by endpoint
  const PeerProcess memory_ = PeerProcess::own();
  std::deque<Members> groups_;
  Contents contents_;
  TraceHash turns_trace_;
  HeapMeter* meter_ = nullptr;
};

template <typename Until>
bool World::run(Until until, Nanos limit) {
  const Nanos end = limit > kNever - now() ? kNever : now() + limit;
  while (!until()) {
    if (network_.next() > end || standstill()) {
      if (!standstill()) network_.wait_until(end);
      return false;
    }
    network_.step();
  }
  return true;
}

}  // namespace mcast::sim
