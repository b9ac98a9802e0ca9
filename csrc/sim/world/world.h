// A simulated world: hosts on a network, each with some ranks that have both lanes of the engine;
// groups made by real agreement and a real probe; operations on real memory that is checked when
// they complete. Time is virtual: a run depends only on the specification.
//
// Ranks of one host share memory unless settings say otherwise: groups within one host use no
// network, groups of several hosts fold within each host first and move large blocks by rails, as
// in the product. Subgroups have lanes of their own.
//
// Aggregators have hosts of their own; groups use them unless settings name others.
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
#include "runtime/network_group.h"
#include "sim/network/content.h"
#include "sim/network/heap_meter.h"
#include "sim/network/sim_network.h"
#include "sim/world/aggregators.h"
#include "sim/world/contents.h"
#include "sim/world/sim_clock.h"
#include "sim/world/sim_host_group.h"
#include "sim/world/sim_lane.h"
#include "sim/world/sim_security.h"

namespace mcast::sim {

// Class of a datagram of the engine, from its header.
TrafficClass class_of_datagram(ConstBytes datagram);

struct WorldSpec {
  uint32_t hosts = 2;
  uint32_t ranks = 1;         // per host: rank r is on host r / ranks, or
  std::vector<HostId> order;  // if not empty, on host order[r / ranks]
  uint64_t seed = 1;
  SimOptions net;  // with a fabric, whose topology has as many hosts
  Config config;   // settings of all ranks
  LaneCosts costs;
  std::function<LaneCosts(uint32_t rank)> costs_of;  // null: `costs` for all
  // For large worlds: ranks keep ledgers instead of memory (content.h, contributions.h). Reductions
  // use memory if ranks of a host fold first, or if Contributions::serve() returns false.
  bool ledgers = false;
  std::function<SimClock(uint32_t rank)> clock;  // null: all show the world's time
  std::vector<AggregatorSpec> aggregators;       // on hosts without ranks
  WorldGuarding guarding;  // used if `config` says so; all groups of a world have one mode
};

// One call, equal at all ranks that are to agree.
struct Operation {
  wire::Kind kind = wire::Kind::kBarrier;
  uint64_t id = 0;  // selects its content: different for each call of a world
  // Length of a block: all bytes of a broadcast or an all_reduce, else those of one rank.
  size_t bytes = 0;
  uint64_t splits = 0;  // all_to_all: seed of block lengths that differ (exchange_content.h)
  Member root = 0;
  Reducing how{Element::kInt32, Reduction::kSum, 1};
  Nanos timeout = 1800 * kSecond;
};

// A message from one member of a group to another. The id selects its content, as for an operation.
struct Message {
  uint64_t id = 0;
  size_t bytes = 0;
  Member from = 0, to = 0;
  uint32_t tag = 0;
  bool any = false;  // received with any source
  Nanos timeout = 1800 * kSecond;
};

// The outcome of a call at one rank. Times are the world's.
struct Outcome {
  Operation operation;
  Member member = 0;
  int ends = 0;  // 1: it is over
  Status status;
  Nanos posted = 0, done = kNever;
  std::string wrong;  // first wrong byte once it is done; "": all bytes are right

  bool over() const { return ends > 0; }
  bool good() const { return ends == 1 && status.ok() && wrong.empty(); }
};

class World final : private SimNetwork::Listener, private Surroundings {
 public:
  using GroupId = size_t;

  // The specification's topology must fit its hosts; guarded worlds need an ok() of load_library().
  explicit World(WorldSpec spec);
  ~World() override;

  const WorldSpec& spec() const { return spec_; }
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  Nanos now() const override { return network_.now(); }
  SimNetwork& network() { return network_; }
  const SimNetwork& network() const { return network_; }
  Aggregators& aggregators() { return aggregators_; }
  // Bytes that all endpoints have sent only for being guarded.
  GuardTotals guard_totals() const;
  // `number`: 0, or the number of a subgroup's multicast lane.
  SimLane& lane(uint32_t rank, LaneId id, uint32_t number = 0) {
    return *lanes_of(rank, number)[id];
  }
  // A rank's endpoints: of its multicast lane, its reduce lane, and its subgroups.
  std::vector<size_t> endpoints(uint32_t rank) const;
  uint32_t rank_at(size_t endpoint) const { return lanes_[endpoint].rank; }
  SimTransport& endpoint(size_t number) { return lanes_[number].lane->endpoint(); }
  // Lanes by number of endpoint; null: not a rank's. Endpoints beyond the end are not ranks'
  // either.
  std::vector<SimLane*> lanes() const;

  // Begins to make a group of these ranks. `config`: settings of all of them, if not the world's.
  // `ready` runs once for each live member, maybe within this call, when the member has the group
  // with its parts or knows why it cannot be made.
  using Ready = std::function<void(Member)>;
  // `absent`: members that have published their records and never make the group; only where ranks
  // of a host share no memory.
  GroupId make_group(const std::vector<uint32_t>& ranks, const Config* config = nullptr,
                     Ready ready = {}, std::vector<Member> absent = {});
  GroupId make_group();  // of all ranks
  // Number of groups begun so far, parts included; also the id of the next one.
  GroupId groups() const { return groups_.size(); }
  // Returns true if all live members have the group with its parts, or know why it was not made.
  bool made(GroupId g) const { return groups_[g].waiting == 0 && groups_[g].parts_waiting == 0; }
  const Status& making(GroupId g, Member m) const { return groups_[g].members[m].making; }
  uint32_t size(GroupId g) const { return static_cast<uint32_t>(groups_[g].members.size()); }
  uint32_t rank(GroupId g, Member m) const { return groups_[g].members[m].rank; }
  GroupBase& group(GroupId g, Member m) { return *groups_[g].members[m].group; }
  // The groups that it consists of: rails and host groups, or subgroups.
  const std::vector<GroupId>& parts(GroupId g) const { return groups_[g].parts; }
  // The group's state machine on one of its lanes; null: the member has left, or the group uses no
  // network.
  GroupCore* core(GroupId g, Member m, LaneId id);
  // The counter's sum over all members, parts included.
  uint64_t total(GroupId g, Counter counter) const;
  // Adds to each rank's entry the peak of bytes that its group and the group's parts have staged
  // since the previous call, summed over these and their lanes.
  void take_staged_peaks(GroupId g, std::vector<uint64_t>* by_rank);

  // Posts an operation at a member of a group that is made. A refused operation is over
  // immediately. `then`, if given, runs when the operation ends, in the engine's done callback, and
  // may post more; it does not run if the operation was refused.
  using Then = std::function<void(const Outcome&)>;
  std::shared_ptr<const Outcome> post(GroupId g, Member m, const Operation& operation,
                                      Then then = {});
  // Posts the sending or the receiving side of a message; the rules are those of post().
  std::shared_ptr<const Outcome> post_message(GroupId g, const Message& message, bool receives,
                                              Then then = {});
  // Posts at all members; results by member.
  std::vector<std::shared_ptr<const Outcome>> post_all(GroupId g, const Operation& operation);
  // Begins to leave the group at all members; closed() returns true once all live ones have.
  void close(GroupId g, Nanos limit);
  bool closed(GroupId g) const;

  // Runs `action` when the time comes.
  void at(Nanos when, std::function<void()> action) override {
    network_.schedule(when, std::move(action));
  }
  // Runs events until `until()` returns true or for `limit`; returns until(). If no event is left
  // before that, standstill() returns true.
  template <typename Until>
  bool run(Until until, Nanos limit);
  bool standstill() const { return network_.next() == kNever; }

  // Faults of a process: it is paused or resumed; it dies; it ends in order, which requires all its
  // groups to be closed, and is killed() from then on; its clock jumps ahead.
  void pause(uint32_t rank, bool paused);
  void kill(uint32_t rank);
  void exit(uint32_t rank);
  bool killed(uint32_t rank) const override { return ranks_[rank].killed; }
  bool paused(uint32_t rank) const override { return ranks_[rank].paused; }
  void jump(uint32_t rank, Nanos by);

  // Hash of everything that happened: equal for equal runs of one build.
  uint64_t trace_hash() const;
  uint64_t most_spins() const;
  // Accounts allocations of the engine to ranks; outlives the world. Null: no accounting. Memory of
  // the world itself and of the network is not accounted to any rank.
  void set_meter(HeapMeter* meter) {
    meter_ = meter;
    network_.set_meter(meter);
  }
  // Drops all groups, which must be closed: they cannot be queried any more.
  void let_go();

 private:
  struct Rank {
    SimClock clock;
    // The first pair serves all groups; the others are the multicast lanes of subgroups.
    std::vector<PerLane<std::shared_ptr<SimLane>>> lanes;
    // Bytes received by all its multicast lanes (LaneAccounts).
    std::shared_ptr<std::atomic<uint64_t>> arrived = std::make_shared<std::atomic<uint64_t>>(0);
    bool killed = false, paused = false, exited = false;
  };
  // Parameters for making a group; parts differ in all but the settings' text.
  struct Making {
    std::string name;
    std::vector<uint32_t> ranks;
    std::vector<Member> absent;
    Config config;
    uint32_t part_index = 0, link_sharers = 1, lane = 0;
    std::optional<GroupId> whole;  // of which this is a part
    Ready ready;
  };
  struct GroupMember {
    uint32_t rank = 0;
    std::shared_ptr<GroupBase> group;
    NetworkGroup* on_network = nullptr;  // same object as `group`, or
    SimHostGroup* on_host = nullptr;
    Agreement agreement;  // without the addresses
    // The outcome of making it is known; its user has been notified.
    bool ready = false, told = false;
    Status making;
    std::shared_ptr<GroupFold> fold;  // null: it may not have stations
    bool asked = false;               // it waits for their first reply
    bool closing = false;             // closing has begun and not ended
  };
  struct Members {
    Making how;
    std::vector<GroupMember> members;
    uint32_t waiting = 0;  // members that do not know yet whether the group was made
    uint32_t parts_waiting = 0;
    std::vector<GroupId> parts;
    std::vector<uint32_t> host_of;  // by member
    bool host_reads = false;        // ranks of a host fold first
    bool rails = false;             // parts are rails and host groups, else subgroups
    bool in_parts = false;          // it will have parts
  };
  // Memory of a call at one rank, until the call is over.
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
    SimLane* lane = nullptr;  // null: not a lane's endpoint
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
