// Every member of a group has a script: the group's operations, in order. Each is called when its
// time has come, the previous one has been called (or has ended), and the process runs. Remaining
// calls of a dead or permanently stopped rank are not waited for.
#include "sim/swarm/runner.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "sim/swarm/coverage.h"
#include "sim/swarm/faults.h"
#include "sim/swarm/message_run.h"
#include "sim/swarm/plan_world.h"

namespace mcast::sim {

namespace {

constexpr Nanos kRunLimit = 1200 * kSecond;   // until all calls are over
constexpr uint64_t kMostEvents = 50'000'000;  // also until then; a plan needs some 100,000
constexpr Nanos kIdle = 10 * kSecond;         // by the slowest clock: all timers have expired then
// Linger of a rank that leaves early: until all is confirmed.
constexpr Nanos kEarlyLinger = 6000 * kSecond;
constexpr Nanos kStillLimit = 900 * kSecond;  // until no event is left

class PlanRun {
 public:
  PlanRun(const Plan& plan, HeapMeter* meter)
      : plan_(plan),
        faults_(plan, world_,
                {[this](uint32_t rank) { resume(rank); }, [this](uint32_t rank) { drop(rank); },
                 [this](const PlannedFault& fault) { on_call(fault); }}),
        messages_(plan, world_,
                  {[this](uint32_t rank) { return faults_.paused(rank); },
                   [this](size_t g, Member m) { leave_early(g, m); }}),
        world_(world_of(plan)),
        meter_(meter) {
    world_.set_meter(meter);
  }

  RunEnd run();

 private:
  // The remaining calls of one member of a group.
  struct Script {
    size_t group = 0;
    Member member = 0;
    uint32_t rank = 0;
    std::vector<uint32_t> ops;  // indices in the plan
    size_t next = 0;            // index in `ops`
    size_t left = 0;            // calls that have not ended
    bool ready = false, dropped = false, in_flight = false;
    bool absent = false;   // it never makes the group
    bool closed = false;   // every close has ended:
    uint32_t closing = 0;  // of its group and of the group's parts, closes that have not ended
    std::vector<std::shared_ptr<const Outcome>> outcomes;  // of calls that were posted
  };
  struct Running {
    World::GroupId id = 0;
    bool begun = false;
    std::vector<Script> members;
    std::optional<Agreed> agreed;  // once the group is made
  };

  void prepare();
  void make(size_t g);
  void give_up(size_t g);
  void on_ready(size_t g, Member m);
  void advance(size_t g, Member m);
  void call(size_t g, Member m);
  void on_end(size_t g, Member m);
  void leave_early(size_t g, Member m);
  void close(size_t g, Member m, Nanos limit);
  void exit(uint32_t rank);
  std::vector<std::pair<World::GroupId, Member>> parts_of(size_t g, Member m) const;
  void drop(Script& script);
  void drop(uint32_t rank);
  void resume(uint32_t rank);
  void on_call(const PlannedFault& fault);
  void look_at_staging(size_t g, Member m);
  void look_at_aggregators();
  void note_leftovers();
  template <typename Act>
  void at_all(uint32_t rank, Act act);

  void wait_idle();
  void close_all();
  void note_calls();
  void note_group(size_t g);
  uint64_t sent() const;
  Nanos scaled(Nanos time) const {
    return static_cast<Nanos>(static_cast<double>(time) / slowest_);
  }

  const Plan& plan_;
  RunEnd end_;
  std::vector<Running> groups_;
  size_t left_ = 0;      // calls that are waited for
  uint64_t before_ = 0;  // data datagrams that overflowed before the last group was made
  size_t closing_ = 0;   // closes that are waited for
  Nanos healed_ = 0;     // when the last fault that ends has ended
  double slowest_ = 1;
  bool ended_ = false;  // events of a world that is being destroyed are ignored
  Faults faults_;
  MessageRun messages_;
  World world_;  // destroyed first: its destructor still calls back
  HeapMeter* const meter_;
  std::vector<uint64_t> heap_before_;  // by rank
  std::set<uint32_t> exiting_;         // ranks that end once they have nothing left
};

void PlanRun::prepare() {
  end_.aggregators.resize(plan_.aggregators.size());
  if (meter_ != nullptr) {
    meter_->reset_peaks();
    for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
      heap_before_.push_back(meter_->held(rank));
    }
  }
  // Faults affect all lanes of a rank, so all lanes must exist already.
  const auto subgroups = static_cast<uint32_t>(world_.spec().config.subgroups);
  for (uint32_t rank = 0; subgroups > 1 && rank < plan_.ranks(); rank++) {
    (void)world_.lane(rank, LaneId::kMulticast, subgroups);
  }
  for (const PlannedGroup& group : plan_.groups) {
    Running& running = groups_.emplace_back();
    for (const uint32_t rank : group.ranks) {
      Script& script = running.members.emplace_back();
      script.group = groups_.size() - 1;
      script.member = static_cast<Member>(running.members.size() - 1);
      script.rank = rank;
    }
  }
  for (uint32_t i = 0; i < plan_.ops.size(); i++) {
    for (Script& script : groups_[plan_.ops[i].group].members) {
      script.ops.push_back(i);
      script.left++;
      left_++;
    }
  }
  for (size_t g = 0; g < groups_.size(); g++) {
    world_.at(plan_.groups[g].at, [this, g] { make(g); });
  }
  for (const PlannedRank& rank : plan_.special) slowest_ = std::min(slowest_, rank.clock);
  for (const PlannedAggregator& one : plan_.aggregators) slowest_ = std::min(slowest_, one.clock);
  for (const PlannedFault& fault : plan_.faults) {
    if (fault.end() != kNever) healed_ = std::max(healed_, fault.end());
  }
}

// ---- groups ----

// If a rank is dead its record never arrives, and no member makes the group.
void PlanRun::make(size_t g) {
  Running& running = groups_[g];
  for (const Script& script : running.members) {
    if (!world_.killed(script.rank)) continue;
    for (Script& one : running.members) drop(one);
    return;
  }
  running.id = world_.groups();
  running.begun = true;
  Config config = world_.spec().config;
  if (plan_.groups[g].ring != 0) config.algorithm = "ring";
  const std::vector<Member> absent = absent_from(plan_, g);
  for (const Member m : absent) {
    running.members[m].absent = true;
    faults_.note(FaultKind::kAbsent);
  }
  world_.make_group(
      plan_.groups[g].ranks, &config, [this, g](Member m) { on_ready(g, m); }, absent);
  world_.at(world_.now() + kMakeLimit, [this, g] { give_up(g); });
}

// Does what the creation of a group does when its time limit has expired.
void PlanRun::give_up(size_t g) {
  for (Member m = 0; m < groups_[g].members.size(); m++) {
    const Script& script = groups_[g].members[m];
    if (script.ready || world_.killed(script.rank)) continue;
    world_.group(groups_[g].id, m).abort("the group was not made in time");
    for (const auto& [part, member] : parts_of(g, m)) {
      world_.group(part, member).abort("the group was not made in time");
    }
    // While others wait for their parts, this rank gets no callback.
    drop(groups_[g].members[m]);
  }
}

std::vector<std::pair<World::GroupId, Member>> PlanRun::parts_of(size_t g, Member m) const {
  std::vector<std::pair<World::GroupId, Member>> mine;
  for (const World::GroupId part : world_.parts(groups_[g].id)) {
    for (Member i = 0; i < world_.size(part); i++) {
      if (world_.rank(part, i) == groups_[g].members[m].rank) mine.emplace_back(part, i);
    }
  }
  return mine;
}

void PlanRun::on_ready(size_t g, Member m) {
  Script& script = groups_[g].members[m];
  script.ready = true;
  before_ = world_.network().totals().overflowed_data;
  // Noted here, since a rank that leaves early drops the group core.
  const GroupCore* const core = world_.core(groups_[g].id, m, LaneId::kMulticast);
  if (core != nullptr) groups_[g].agreed = core->params().agreed;
  if (!world_.making(groups_[g].id, m).ok()) return drop(script);
  messages_.begin(g, m, groups_[g].id);
  advance(g, m);
}

// ---- calls ----

void PlanRun::advance(size_t g, Member m) {
  Script& script = groups_[g].members[m];
  while (script.ready && !script.dropped && script.next < script.ops.size() &&
         !faults_.paused(script.rank)) {
    const PlannedOp& op = plan_.ops[script.ops[script.next]];
    const Nanos due = op.at + (op.late == m ? op.by : 0);
    if (due > world_.now()) return world_.at(due, [this, g, m] { advance(g, m); });
    if (plan_.groups[g].callbacks != 0 && script.in_flight) return;
    call(g, m);
  }
}

void PlanRun::call(size_t g, Member m) {
  Script& script = groups_[g].members[m];
  const uint32_t index = script.ops[script.next++];
  script.in_flight = true;
  const Operation op = operation_of(plan_, index, m);
  const auto outcome = world_.post(groups_[g].id, m, op, [this, g, m](const Outcome& one) {
    if (one.ends == 1) on_end(g, m);
  });
  script.outcomes.push_back(outcome);
  if (outcome->over()) on_end(g, m);  // the post was refused
}

void PlanRun::on_end(size_t g, Member m) {
  if (ended_) return;
  Script& script = groups_[g].members[m];
  script.in_flight = false;
  look_at_staging(g, m);
  look_at_aggregators();
  if (script.dropped) return;
  script.left--;
  left_--;
  if (plan_.groups[g].callbacks != 0) advance(g, m);
  leave_early(g, m);
}

void PlanRun::leave_early(size_t g, Member m) {
  const Script& script = groups_[g].members[m];
  if (ended_ || script.dropped || plan_.groups[g].early == 0) return;
  if (script.left > 0 || messages_.left(g, m) > 0) return;
  world_.at(world_.now() + 10 * kMicro, [this, g, m] { close(g, m, kEarlyLinger); });
}

void PlanRun::look_at_staging(size_t g, Member m) {
  std::vector<std::pair<World::GroupId, Member>> all = parts_of(g, m);
  all.emplace_back(groups_[g].id, m);
  for (const auto& [group, member] : all) {
    end_.overstaged = std::max(end_.overstaged, overstaged(world_, group, member));
  }
}

void PlanRun::look_at_aggregators() {
  for (size_t i = 0; i < plan_.aggregators.size(); i++) {
    if (!world_.aggregators().runs(i)) continue;
    AggregatorEnd& end = end_.aggregators[i];
    const service::Report report = world_.aggregators().report(i);
    if (report.quota_used > plan_.aggregators[i].quota) {
      end.overdrawn = std::max(end.overdrawn, report.quota_used - plan_.aggregators[i].quota);
    }
    note_stations(report, end);
  }
}

// Called after the last close, when groups are not queried any more.
void PlanRun::note_leftovers() {
  for (size_t i = 0; i < plan_.aggregators.size(); i++) {
    AggregatorEnd& end = end_.aggregators[i];
    end.runs = world_.aggregators().runs(i);
    if (!end.runs) continue;
    const service::Report report = world_.aggregators().report(i);
    end.jobs = report.jobs.size();
    end.reserved = report.quota_used;
  }
  if (meter_ == nullptr) return;
  world_.let_go();
  const auto beyond = [](uint64_t now, uint64_t before) { return now > before ? now - before : 0; };
  for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
    const uint64_t before = heap_before_[rank];
    end_.heap.push_back({beyond(meter_->peak(rank), before), beyond(meter_->held(rank), before)});
  }
}

void PlanRun::drop(Script& script) {
  if (std::exchange(script.dropped, true)) return;
  left_ -= script.left;
  messages_.drop(script.group, script.member);
}

template <typename Act>
void PlanRun::at_all(uint32_t rank, Act act) {
  for (size_t g = 0; g < groups_.size(); g++) {
    for (Member m = 0; m < groups_[g].members.size(); m++) {
      if (groups_[g].members[m].rank == rank) act(g, m);
    }
  }
}

// A dead process closes no groups either.
void PlanRun::drop(uint32_t rank) {
  at_all(rank, [&](size_t g, Member m) {
    Script& script = groups_[g].members[m];
    drop(script);
    closing_ -= std::exchange(script.closing, 0);
  });
}

void PlanRun::resume(uint32_t rank) {
  at_all(rank, [&](size_t g, Member m) {
    messages_.advance(g, m);
    advance(g, m);
  });
  exit(rank);
}

// Ends the rank's process once it has closed all its groups and its peers can receive its goodbyes.
void PlanRun::exit(uint32_t rank) {
  if (exiting_.count(rank) == 0 || world_.killed(rank)) return;
  if (faults_.paused(rank) || faults_.isolated(rank)) return;
  bool busy = false;
  at_all(rank, [&](size_t g, Member m) {
    const Script& script = groups_[g].members[m];
    busy = busy || !(script.closed || script.absent);
  });
  if (busy) return;
  faults_.note(FaultKind::kExit);
  world_.exit(rank);
}

void PlanRun::on_call(const PlannedFault& fault) {
  if (fault.what == FaultKind::kExit) {
    exiting_.insert(fault.rank);
    return exit(fault.rank);
  }
  at_all(fault.rank, [&](size_t g, Member m) {
    const Script& script = groups_[g].members[m];
    if (g != fault.group || !script.ready || script.dropped) return;
    if (fault.what == FaultKind::kAbort) {
      world_.group(groups_[g].id, m).abort("as planned");
    } else {
      close(g, m, fault.much);
    }
  });
}

// ---- the end ----

// Closes the parts after the whole group, as an engine does.
void PlanRun::close(size_t g, Member m, Nanos limit) {
  Script& script = groups_[g].members[m];
  if (script.closing > 0 || script.absent || world_.killed(script.rank)) return;
  std::vector<std::pair<World::GroupId, Member>> all{{groups_[g].id, m}};
  for (const auto& part : parts_of(g, m)) all.push_back(part);
  script.closing = static_cast<uint32_t>(all.size());
  closing_ += all.size();
  for (const auto& [group, member] : all) {
    world_.group(group, member).begin_close(limit, false, [this, g, m](const Status&) {
      Script& closes = groups_[g].members[m];
      if (closes.closing == 0) return;
      closing_--;
      if (--closes.closing > 0) return;
      closes.closed = true;
      // Deferred, since this callback runs within a turn of the rank's lane.
      world_.at(world_.now() + kMicro, [this, rank = closes.rank] { exit(rank); });
    });
  }
}

uint64_t PlanRun::sent() const {
  const SimNetwork::Totals& totals = world_.network().totals();
  return totals.datagrams_sent + totals.frames;
}

void PlanRun::wait_idle() {
  const auto never = [] { return false; };
  world_.run(never, scaled(kIdle));
  const uint64_t before = sent();
  world_.run(never, kIdle);
  end_.sent_idle = sent() - before;
}

void PlanRun::close_all() {
  faults_.kill_the_lost();
  for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
    if (world_.killed(rank)) drop(rank);
  }
  const Nanos linger = world_.spec().config.linger;
  for (size_t g = 0; g < groups_.size(); g++) {
    for (Member m = 0; groups_[g].begun && m < groups_[g].members.size(); m++) close(g, m, linger);
  }
  end_.closed = world_.run([&] { return closing_ == 0; }, scaled(linger + kIdle));
  faults_.end();
  // An aggregator that is not notified of its client's death keeps the job for a minute.
  const Nanos silence = plan_.aggregators.empty() ? 0 : service::Jobs::kSilenceLimit + kIdle;
  world_.run([&] { return world_.standstill(); }, scaled(kIdle + silence));
  const uint64_t before = sent();
  world_.run([&] { return world_.standstill(); }, kStillLimit);
  end_.sent_closed = sent() - before;
  end_.still = world_.standstill();
}

void PlanRun::note_calls() {
  for (const Running& running : groups_) {
    for (Member m = 0; m < running.members.size(); m++) {
      const Script& script = running.members[m];
      for (size_t k = 0; k < script.ops.size(); k++) {
        CallEnd& call = end_.calls.emplace_back();
        call.op = script.ops[k];
        call.member = m;
        call.rank = script.rank;
        if (k >= script.outcomes.size()) continue;
        call.note(*script.outcomes[k]);
      }
    }
  }
  end_.messages = messages_.ends();
}

void PlanRun::note_group(size_t g) {
  const Running& running = groups_[g];
  GroupEnd& end = end_.groups[g];
  end.multicast = running.begun;
  end.parts = running.begun && !world_.parts(running.id).empty();
  for (size_t c = 0; running.begun && c < kCounterCount; c++) {
    end.counters[c] = world_.total(running.id, static_cast<Counter>(c));
  }
  for (Member m = 0; running.begun && m < running.members.size(); m++) {
    end.ready.push_back(running.members[m].ready);
    end.making.push_back(world_.making(running.id, m));
    const GroupCore* const core = world_.core(running.id, m, LaneId::kMulticast);
    end.multicast = end.multicast && core != nullptr && core->path() == Path::kMulticast;
  }
  end.agreed = running.agreed;
  if (running.agreed) note_plans(plan_, g, *running.agreed, end);
}

RunEnd PlanRun::run() {
  prepare();
  faults_.begin();
  const auto busy = [&] { return world_.network().events() > kMostEvents; };
  const auto over = [&] { return left_ == 0 && messages_.left() == 0; };
  world_.run([&] { return over() || busy(); }, kRunLimit);
  end_.over = over();
  end_.overflowed = world_.network().totals().overflowed_data - before_;
  end_.busy = busy();
  end_.stuck = !end_.over && world_.standstill();
  end_.over_at = world_.now();
  if (end_.busy) {
    ended_ = true;
    return std::move(end_);
  }
  if (healed_ > world_.now()) {
    world_.run([&] { return world_.now() >= healed_; }, healed_ - world_.now());
  }
  wait_idle();
  look_at_aggregators();
  end_.groups.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); g++) note_group(g);
  // Notes the calls that have not ended before the close changes them.
  if (!end_.over) note_calls();
  close_all();
  if (end_.over) note_calls();
  note_packets(world_, end_);
  for (const Running& running : groups_) {
    for (size_t c = 0; running.begun && c < kCounterCount; c++) {
      end_.reached[c] += world_.total(running.id, static_cast<Counter>(c));
    }
  }
  note_lanes(world_, end_);
  for (const AggregatorEnd& one : end_.aggregators) {
    for (size_t c = 0; c < kCounterCount; c++) end_.reached[c] += one.counters[c];
  }
  note_leftovers();
  end_.happened = faults_.happened();
  end_.hash = world_.trace_hash();
  end_.spins = world_.most_spins();
  ended_ = true;
  return std::move(end_);
}

}  // namespace

RunEnd carry_out(const Plan& plan, HeapMeter* meter) { return PlanRun(plan, meter).run(); }

}  // namespace mcast::sim
