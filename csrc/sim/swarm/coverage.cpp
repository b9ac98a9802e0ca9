// A fault counts where it took effect, not where a plan names it.
#include "sim/swarm/coverage.h"

#include <algorithm>

#include "base/coverage.h"
#include "collective/movements/repair.h"
#include "collective/plan.h"

namespace mcast::sim {

namespace {

// Counters that no plan reaches, and why. Tests of other kinds reach them (tools/reach.py).
struct Exception {
  const char* name;
  const char* why;
};
constexpr Exception kExceptions[] = {
    {"fetch_grants_sent", "no simulated device reads other ranks' memory"},
    {"repair_reads", "the same"},
    {"repair_read_bytes", "the same"},
    {"share_waits", "jobs share links where an engine process serves them"},
    {"fragmented", "the kernel fragments, if an interface's MTU shrinks"},
    {"shm_mapped_bytes", "simulated ranks read each other's memory and map none"},
    {"shm_sleeps", "simulated ranks of a host have turns instead of threads that sleep"},
    {"shm_wakes", "the same"},
    {"engine_mapped_bytes", "simulated ranks are not clients of an engine"},
    {"engine_span_bytes", "the same"},
    {"engine_moved_bytes", "the same"},
    {"waits_yielded", "the same"},
    {"waits_braked", "the same"},
    {"partial_results", "results without some inputs would need another law of bytes"},
    {"rate_tests", "they begin when large operations have been under way for a second"},
    {"rate_test_bytes", "the same"},
    {"agg_malformed", "a law forbids it"},
    {"agg_held", "stations count it and do not report it"},
    {"agg_idle", "the same"},
    {"abort_after_leaving",
     "a lane removes a group in the poll in which it leaves: later frames match no group"},
};

bool excepted(std::string_view name) {
  return std::any_of(std::begin(kExceptions), std::end(kExceptions),
                     [&](const Exception& one) { return one.name == name; });
}

}  // namespace

void note_lanes(World& world, RunEnd& run) {
  for (uint32_t rank = 0; rank < world.spec().hosts * world.spec().ranks; rank++) {
    for (const LaneId id : kBothLanes) {
      const Lane& lane = world.lane(rank, id).lane();
      run.reached[static_cast<size_t>(Counter::foreign)] += lane.foreign();
      run.reached[static_cast<size_t>(Counter::neighbour)] += lane.neighbour();
      run.reached[static_cast<size_t>(Counter::late)] += lane.late();
      run.reached[static_cast<size_t>(Counter::malformed)] += lane.malformed();
      run.unreadable += lane.malformed();
    }
  }
}

void note_packets(World& world, RunEnd& run) {
  const Fabric& fabric = world.network().fabric();
  for (HostId host = 0; host < world.spec().hosts; host++) {
    const LinkId link = fabric.topology().host_link(0, host);
    run.data_packets += fabric.traffic()[link].of[static_cast<size_t>(TrafficClass::kData)].packets;
  }
}

void note_stations(const service::Report& report, AggregatorEnd& end) {
  std::array<uint64_t, kCounterCount> sums{};
  const auto add = [&](Counter counter, uint64_t count) {
    sums[static_cast<size_t>(counter)] += count;
  };
  end.taken = end.given = 0;
  for (const service::JobReport& job : report.jobs) {
    for (const service::StationReport& station : job.stations) {
      end.malformed = std::max(end.malformed, station.malformed);
      end.taken += station.frames_in;
      end.given += station.frames_out;
      add(Counter::agg_declined, station.declined);
      add(Counter::agg_repeated, station.repeated);
      add(Counter::agg_stale, station.stale);
      add(Counter::agg_staged_bytes, station.staged_bytes);
    }
  }
  for (size_t c = 0; c < kCounterCount; c++) end.counters[c] = std::max(end.counters[c], sums[c]);
}

size_t overstaged(World& world, World::GroupId group, Member member) {
  size_t most = 0;
  for (const LaneId id : kBothLanes) {
    const GroupCore* const core = world.core(group, member, id);
    if (core == nullptr || core->staged_bytes() <= core->params().staging) continue;
    most = std::max(most, core->staged_bytes() - core->params().staging);
  }
  return most;
}

void note_plans(const Plan& plan, size_t g, const Agreed& agreed, GroupEnd& end) {
  end.request = std::max<uint64_t>(1, kMostAsked / agreed.chunk);
  for (const PlannedOp& op : plan.ops) {
    if (op.group != g) continue;
    if (wire::is_exchange(op.kind)) {
      end.exchanged += shape_of(plan, op, kNoMember).crossing();
      continue;
    }
    wire::Descriptor d{op.kind, 0, kNoMember, op.bytes, ""};
    if (wire::is_rooted(op.kind)) d.root = static_cast<Member>(op.root);
    if (wire::is_reduction(op.kind)) {
      d.element = static_cast<uint8_t>(op.element);
      d.reduction = static_cast<uint8_t>(op.reduction);
    }
    const mcast::Plan made = make_plan(d, agreed, element_size(op.element));
    end.chunks += uint64_t{made.chunks} * made.roots;
    // Roots near the end of a block within their first window need no credit from anybody.
    const bool unpaced = made.chunks <= made.window + made.window / 2;
    if (made.chains < made.roots && unpaced) {
      end.unpaced = std::max(end.unpaced, uint64_t{made.chunks} * (made.roots - 1));
    }
  }
}

void Coverage::add(const RunEnd& run) {
  for (size_t c = 0; c < kCounterCount; c++) counters_[c] += run.reached[c];
  for (size_t one = 0; one < kFaultKinds; one++) {
    for (size_t other = 0; run.over && other < one; other++) {
      if (run.happened[one] > 0 && run.happened[other] > 0) together_[one][other] = true;
    }
  }
}

std::vector<std::string> Coverage::silent_counters() const {
  std::vector<std::string> silent;
  for (size_t c = 0; c < kCounterCount; c++) {
    const char* const name = counter_name(static_cast<Counter>(c));
    if (counters_[c] == 0 && !excepted(name)) silent.emplace_back(name);
  }
  return silent;
}

std::vector<std::string> Coverage::silent_points() const {
  std::vector<std::string> silent;
  for (size_t p = 0; p < kCoverPoints; p++) {
    const char* const name = reach_points::name(p);
    if (reach_points::count(p) == 0 && !excepted(name)) silent.emplace_back(name);
  }
  return silent;
}

std::vector<std::string> Coverage::refuted() const {
  std::vector<std::string> reached;
  for (size_t c = 0; c < kCounterCount; c++) {
    const char* const name = counter_name(static_cast<Counter>(c));
    if (counters_[c] > 0 && excepted(name)) reached.emplace_back(name);
  }
  for (size_t p = 0; p < kCoverPoints; p++) {
    const char* const name = reach_points::name(p);
    if (reach_points::count(p) > 0 && excepted(name)) reached.emplace_back(name);
  }
  return reached;
}

std::vector<std::string> Coverage::missing_pairs() const {
  std::vector<std::string> missing;
  for (size_t one = 0; one < kFaultKinds; one++) {
    for (size_t other = 0; other < one; other++) {
      if (together_[one][other]) continue;
      missing.push_back(std::string(fault_name(static_cast<FaultKind>(other))) + "+" +
                        fault_name(static_cast<FaultKind>(one)));
    }
  }
  return missing;
}

}  // namespace mcast::sim
