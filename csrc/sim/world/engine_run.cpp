// Experiments on the real engine. A world of all ranks makes one group, without faults; then links
// get their faults, background traffic starts, and ranks call the operations. Accounts and counters
// start at the call and end when the traffic that follows the last operation (confirmations) has
// arrived.
#include <algorithm>

#include "crypto/library.h"
#include "sim/world/background.h"
#include "sim/world/experiment.h"
#include "sim/world/rank_accounts.h"
#include "sim/world/world.h"

namespace mcast::sim {
namespace {

constexpr uint64_t kQuota = uint64_t{4} << 30;       // of an aggregator
constexpr uint64_t kMostMemory = uint64_t{6} << 30;  // for contents with bytes of their own
constexpr Nanos kAfterwards = 5 * kMilli;            // longest time after an operation

wire::Kind kind_of(Collective op) {
  static constexpr wire::Kind kKinds[] = {wire::Kind::kBroadcast,     wire::Kind::kAllgather,
                                          wire::Kind::kReduceScatter, wire::Kind::kAllreduce,
                                          wire::Kind::kAllToAll,      wire::Kind::kGather,
                                          wire::Kind::kScatter};
  return kKinds[static_cast<size_t>(op)];
}

// Length of one rank's block, or of all blocks. Whole elements of any type.
uint64_t block_of(const ExperimentSpec& spec, Collective op) {
  const uint64_t ranks = spec.all_ranks();
  if (op == Collective::kBroadcast) return std::max<uint64_t>(4, spec.size / 4 * 4);
  const uint64_t block = std::max<uint64_t>(4, spec.size / ranks / 4 * 4);
  // Equal parts of an all_reduce need no extra memory (Contributions::serve()).
  return op == Collective::kAllReduce ? ranks * block : block;
}

Status check_memory(const ExperimentSpec& spec) {
  uint64_t bytes = 0;
  for (const Collective op : spec.ops) {
    const uint64_t each = op == Collective::kAllReduce       ? 2 * spec.size
                          : op == Collective::kReduceScatter ? spec.size
                                                             : 0;
    // Ranks of one host fold first, in memory, so each needs its own; otherwise all ranks share one
    // copy.
    bytes += each * (spec.ranks > 1 ? spec.all_ranks() : 2);
    // Blocks that each rank has for each other rank: held by all ranks, or by the root and once
    // more by the others.
    if (op == Collective::kAllToAll) bytes += 2 * spec.size * spec.all_ranks();
    if (op == Collective::kGather || op == Collective::kScatter) bytes += 2 * spec.size;
  }
  if (bytes <= kMostMemory) return {};
  return Status(Code::kResourceExhausted,
                "exchanges, and reductions of hosts with several ranks, need real memory: " +
                    std::to_string(bytes >> 30) + " GiB in all, at most " +
                    std::to_string(kMostMemory >> 30) +
                    " are allowed; choose a smaller size or fewer ranks");
}

// As in the product, with a quota for groups of any size.
std::vector<AggregatorSpec> aggregators_of(const ExperimentSpec& spec) {
  std::vector<AggregatorSpec> all;
  for (const HostId host : hosts_of_aggregators(spec)) {
    AggregatorSpec& one = all.emplace_back();
    one.host = host;
    one.options.quota = kQuota;
    one.options.rate = static_cast<uint64_t>(spec.aggregators.rate * 8);
    one.costs.wake = spec.wake;
    one.costs.turn = spec.turn;
  }
  return all;
}

Result<WorldSpec> world_of(const ExperimentSpec& spec, bool ring) {
  auto settings = spec.settings;
  // Gives the planner the hosts' link rate, to which it relates the rate of faster aggregators.
  if (spec.extra_hosts() > 0 && spec.aggregators.rate > 0 && settings.count("link_rate") == 0) {
    settings["link_rate"] = std::to_string(static_cast<uint64_t>(spec.net.rate * 8));
  }
  settings["algorithm"] = ring ? "ring" : "multicast";
  Result<Config> config = Config::resolve(settings, {});
  if (!config.ok()) return config.status();
  WorldSpec world;
  world.hosts = spec.hosts;
  world.ranks = spec.ranks;
  world.order = order_of_hosts(spec);
  world.seed = spec.seed;
  world.config = *config;
  world.costs.wake = spec.wake;
  world.costs.turn = spec.turn;
  world.ledgers = true;
  world.aggregators = aggregators_of(spec);
  world.net.seed = spec.seed;
  world.net.jitter = 0;
  world.net.max_datagram = framing_of(spec).datagram_payload + 32;
  world.net.receive_budget = spec.net.budget;
  world.net.bookkeeping = spec.net.bookkeeping;
  world.net.send_queue = spec.net.send_queue;
  world.net.fabric = fabric_of(spec);
  if (ring) world.net.fabric->frames[static_cast<size_t>(Channel::kRepair)] = TrafficClass::kRing;
  return world;
}

class EngineRun {
 public:
  EngineRun(const ExperimentSpec& spec, WorldSpec world, const Watch& watch)
      : spec_(spec), watch_(watch), world_(std::move(world)) {
    world_.set_meter(watch.meter);
    set_aggregator_links(spec, world_.network().fabric());
  }
  ~EngineRun() { world_.network().end(); }

  Status run();
  OpResult result();

 private:
  Status make();
  void start_background();
  void next_stream();
  void begin();
  Status warm_up();
  void post();
  bool over();
  double done() const;
  Status wrong() const;
  GuardCost guard_cost() const;

  const ExperimentSpec& spec_;
  const Watch& watch_;
  World world_;
  World::GroupId group_ = 0;
  std::vector<std::unique_ptr<SimTransport>> others_;  // by host
  std::unique_ptr<Background> background_;
  Nanos start_ = 0;
  std::unique_ptr<Timeline> timeline_;
  std::vector<std::vector<std::shared_ptr<const Outcome>>> outcomes_;  // by operation and rank
  size_t over_ = 0;                // outcomes that are known to be over
  std::vector<uint64_t> counted_;  // by counter, before the operations
  GuardTotals guarded_;            // before the operations
  std::optional<RankAccounts> accounts_;
  uint64_t events_ = 0, until_report_ = kBetweenReports, operations_ = 0;
};

Status EngineRun::make() {
  group_ = world_.make_group();
  if (!world_.run([&] { return world_.made(group_); }, spec_.course.limit)) {
    return Status(Code::kTimeout, "the group was not made within " +
                                      seconds_text(spec_.course.limit) + " of virtual time");
  }
  for (Member m = 0; m < world_.size(group_); m++) {
    if (!world_.making(group_, m).ok()) {
      return world_.making(group_, m).with_context("rank " + std::to_string(m));
    }
  }
  return {};
}

void EngineRun::start_background() {
  background_ = std::make_unique<Background>(spec_.background.load, spec_.background.size,
                                             spec_.net.rate, spec_.hosts, spec_.seed);
  for (HostId h = 0; h < spec_.hosts; h++) others_.push_back(world_.network().attach({h, 0, 0}));
  start_ = world_.now();
  next_stream();
  (void)world_.run([] { return false; }, background_->settled());
}

void EngineRun::next_stream() {
  const Background::Stream stream = background_->next();
  world_.at(start_ + stream.at, [this, stream] {
    if (!background_) return;
    world_.network().send_background(others_[stream.from]->index(), others_[stream.to]->index(),
                                     spec_.background.size);
    next_stream();
  });
}

void EngineRun::begin() {
  accounts_.emplace(world_, group_, watch_.meter);
  Fabric& fabric = world_.network().fabric();
  timeline_ = std::make_unique<Timeline>(2 * fabric.topology().levels(), world_.now());
  fabric.set_timeline(timeline_.get());
  for (size_t c = 0; c < kCounterCount; c++) {
    counted_.push_back(world_.total(group_, static_cast<Counter>(c)));
  }
  guarded_ = world_.guard_totals();
  events_ = world_.network().events();
}

// Groups remember the capacity of a path (protocol/block_sender.h), and connections their windows.
Status EngineRun::warm_up() {
  for (uint32_t i = 0; i < spec_.course.warmup; i++) {
    start_ = world_.now();
    post();
    if (!world_.run([&] { return over(); }, spec_.course.limit)) {
      return Status(Code::kTimeout, "a warm-up was not done after " +
                                        seconds_text(spec_.course.limit) +
                                        " of virtual time; limit= allows more");
    }
    if (Status status = wrong(); !status.ok()) return status;
    (void)world_.run([] { return false; }, kAfterwards);
    outcomes_.clear();
    over_ = 0;
  }
  return {};
}

void EngineRun::post() {
  std::vector<Nanos> late(spec_.all_ranks(), 0);
  for (const LateRank& l : spec_.late) late[l.rank] = l.by;
  outcomes_.resize(spec_.ops.size());
  for (size_t i = 0; i < spec_.ops.size(); i++) {
    Operation op;
    op.kind = kind_of(spec_.ops[i]);
    op.id = ++operations_;
    op.bytes = block_of(spec_, spec_.ops[i]);
    op.root = static_cast<Member>(spec_.root);
    op.how.element = spec_.type;
    outcomes_[i].resize(spec_.all_ranks());
    for (Member m = 0; m < spec_.all_ranks(); m++) {
      auto call = [this, i, m, op] { outcomes_[i][m] = world_.post(group_, m, op); };
      if (late[m] == 0) {
        call();
      } else {
        world_.at(start_ + late[m], call);
      }
    }
  }
}

// Called between events, so it resumes the scan at the first outcome that was not over.
bool EngineRun::over() {
  if (watch_.progress && --until_report_ == 0) {
    until_report_ = kBetweenReports;
    watch_.progress(world_.now() - start_, done());
  }
  for (const size_t ranks = spec_.all_ranks(); over_ < ranks * outcomes_.size(); over_++) {
    const auto& outcome = outcomes_[over_ / ranks][over_ % ranks];
    if (!outcome || !outcome->over()) return false;
  }
  return true;
}

// Share of the bytes that hosts must receive which have arrived.
double EngineRun::done() const {
  // In a gather only the root receives; in a scatter the root alone sends. Otherwise all hosts
  // receive.
  const bool one = std::all_of(spec_.ops.begin(), spec_.ops.end(), [](Collective op) {
    return op == Collective::kGather || op == Collective::kScatter;
  });
  const double bytes = static_cast<double>(bound_of(spec_)) / 1e9 * spec_.net.rate *
                       spec_.net.topology.planes * (one ? 1 : spec_.hosts);
  const Fabric& fabric = world_.network().fabric();
  const Topology& topology = fabric.topology();
  uint64_t came = 0;
  for (HostId h = 0; h < topology.hosts(); h++) {
    for (unsigned plane = 0; plane < topology.planes(); plane++) {
      came += fabric.traffic()[Topology::reverse(topology.host_link(plane, h))].all().bytes;
    }
  }
  return std::min(1.0, static_cast<double>(came) / bytes);
}

Status EngineRun::wrong() const {
  for (const auto& operation : outcomes_) {
    for (const auto& outcome : operation) {
      if (outcome->good()) continue;
      const std::string rank = "rank " + std::to_string(outcome->member);
      return outcome->status.ok() ? Status(Code::kInternal, rank + ": " + outcome->wrong)
                                  : outcome->status.with_context(rank);
    }
  }
  return {};
}

Status EngineRun::run() {
  if (Status made = make(); !made.ok()) return made;
  set_link_faults(spec_, world_.network().fabric());
  if (Status status = warm_up(); !status.ok()) return status;
  if (spec_.background.load > 0) start_background();
  start_ = world_.now();
  begin();
  post();
  if (!world_.run([&] { return over(); }, spec_.course.limit)) {
    return Status(Code::kTimeout, "not done after " + seconds_text(spec_.course.limit) +
                                      " of virtual time; limit= allows more");
  }
  if (Status status = wrong(); !status.ok()) return status;
  const bool others = background_ != nullptr;
  background_.reset();
  if (!others) (void)world_.run([] { return false; }, kAfterwards);
  return {};
}

GuardCost EngineRun::guard_cost() const {
  const GuardTotals all = world_.guard_totals();
  GuardCost cost;
  cost.datagrams = world_.total(group_, Counter::datagrams_sent) -
                   counted_[static_cast<size_t>(Counter::datagrams_sent)];
  cost.datagram_bytes = cost.datagrams * wire::kGuardedExtra;
  cost.records = all.records - guarded_.records;
  cost.record_bytes = all.record_bytes - guarded_.record_bytes;
  cost.handshakes = all.handshakes;
  cost.handshake_bytes = all.handshake_bytes;
  return cost;
}

OpResult EngineRun::result() {
  OpResult result;
  for (size_t i = 0; i < spec_.ops.size(); i++) {
    OpTimes& op = result.ops.emplace_back();
    op.op = spec_.ops[i];
    op.bound = bound_of(spec_);
    for (const auto& outcome : outcomes_[i]) {
      op.per_rank.push_back(outcome->done - start_);
      op.time = std::max(op.time, op.per_rank.back());
    }
  }
  accounts_->put(&result);
  if (is_guarded(spec_)) result.guard = guard_cost();
  for (size_t c = 0; c < kCounterCount; c++) {
    const auto counter = static_cast<Counter>(c);
    const uint64_t times = world_.total(group_, counter) - counted_[c];
    if (times > 0) result.counters[counter_name(counter)] = times;
  }
  account_fabric(world_.network().fabric(), start_, &result, hosts_of_aggregators(spec_));
  result.bin = timeline_->width();
  result.timeline = timeline_->bins();
  result.events = world_.network().events() - events_;
  result.trace_hash = world_.trace_hash();
  return result;
}

}  // namespace

Result<OpResult> run_on_engine(const ExperimentSpec& spec, const std::string& algorithm,
                               const Watch& watch) {
  if (Status status = check_memory(spec); !status.ok()) return status;
  if (is_guarded(spec)) {
    if (Status status = crypto::load_library(); !status.ok()) return status;
  }
  Result<WorldSpec> world = world_of(spec, algorithm == "ring");
  if (!world.ok()) return world.status();
  EngineRun run(spec, std::move(*world), watch);
  if (Status status = run.run(); !status.ok()) return status;
  OpResult result = run.result();
  result.algorithm = algorithm;
  return result;
}

}  // namespace mcast::sim
