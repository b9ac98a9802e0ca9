// Memory is bounded: a receiver's queue, staging, the heap. The heap limit of a rank is the sum of
// the parts that docs/memory.md allows, each reduced to what this plan can use of it.
#include "collective/movements/exchange_run.h"
#include "collective/plan.h"
#include "protocol/unasked_account.h"
#include "sim/swarm/case.h"
#include "wire/guarded_datagram.h"

namespace mcast::sim {

namespace {

// From docs/memory.md, "Memory": a group without operations; then the records of each operation, of
// each of its streams and of each member of its control tree.
constexpr uint64_t kIdleGroup = 50'000, kIdlePeer = 200;
constexpr uint64_t kMakingPeer = 1024;  // addresses and records, while it is made
constexpr uint64_t kOperation = 4096, kStream = 640, kTreeEntry = 512;
constexpr uint64_t kExchangePeer = 256;
constexpr uint64_t kRankItself = 16'384;  // of lanes: tables, batches of commands
constexpr uint64_t kMostLeft = 16'384;    // also of lanes
constexpr uint64_t kMessage = 2048;       // that is not over, with the record of its sender

uint64_t chunk_of(const Plan& plan) { return (plan.world.datagram - 32) / 64 * 64; }

// Upper bound of the bytes that an operation's roots may send unasked (docs/protocol.md, 5.2).
uint64_t unasked_bytes(const Case& c, const Config& config, const PlannedOp& op) {
  if (wire::is_exchange(op.kind)) return 0;  // exchanges use no multicast
  const bool each = op.kind == wire::Kind::kAllgather || op.kind == wire::Kind::kAllreduce;
  const uint64_t roots = each ? c.plan.groups[op.group].ranks.size() : 1;
  const uint64_t block = std::max(op.bytes, op.odd_bytes);
  return roots * std::min({unasked_by_root(config.eager, config.staging, roots),
                           c.plan.world.budget / 4 / roots, block});
}

// Bytes of a receive budget that a full datagram uses; the budget is already 3/8 less than the
// queue.
double queued_bytes(const Plan& plan) {
  const uint64_t datagram = plan.world.datagram + (is_guarded(plan) ? wire::kGuardedExtra : 0);
  return std::max(static_cast<double>(datagram),
                  static_cast<double>(datagram + plan.world.bookkeeping) * 5 / 8);
}

// Upper bound of what a late rank stages of an operation; each chunk has its bookkeeping.
uint64_t most_staged(const Case& c, const Config& config, const PlannedOp& op) {
  const uint64_t bytes = unasked_bytes(c, config, op);
  return bytes + (bytes / chunk_of(c.plan) + c.plan.groups[op.group].ranks.size()) * 96;
}

// Returns true if a rank consumes data more slowly than it arrives, or not at all for a while.
bool falls_behind(const Plan& plan) {
  return has(plan, FaultKind::kPause) ||
         std::any_of(plan.special.begin(), plan.special.end(),
                     [](const PlannedRank& rank) { return rank.slow > 1; });
}

// Returns true if a rank that falls behind may be sent more than its queue holds. If roots take
// turns, credit for a stream shows that everything before it has been consumed, unless blocks are
// so short that their roots need no credit: then a slow rank may be sent all of them, a queue's
// worth and more. (Windows short enough to prevent that were tried: an all_gather at 1 Gbit/s took
// 8 to 90 % longer, only to avoid losses at a rank that delays everybody anyway.)
bool unpaced(const Case& c) {
  const double bytes = static_cast<double>(c.run.groups[0].unpaced) * queued_bytes(c.plan);
  return falls_behind(c.plan) && bytes > static_cast<double>(c.plan.world.budget) * 3 / 4;
}

// Credit limits the data under way to a rank to its queue, however long the rank does not read.
// Does not check: several groups, or parts of one, that share a queue; faults that create
// additional datagrams; small operations alone, or the smallest windows, that exceed the space
// beside the windows; probes, which are not paced but repeated until everybody has been heard, and
// so fill the queue of a paused rank; and, with bookkeeping, ranks that fall behind: a queue then
// holds the windows of two roots that take turns, but not a third one of the previous operation.
void overflow(const Case& c, const Config& config) {
  const PlannedWorld& w = c.plan.world;
  if (c.run.overflowed == 0 || c.plan.groups.size() > 1 || has_parts(c.plan)) return;
  for (const auto more : {FaultKind::kDuplicate, FaultKind::kReplay, FaultKind::kFlood}) {
    if (has(c.plan, more)) return;
  }
  const auto members = static_cast<double>(c.plan.groups[0].ranks.size());
  const double quarter = static_cast<double>(w.budget) / 4;
  double unasked = 0;
  for (const PlannedOp& op : c.plan.ops) {
    const auto bytes = static_cast<double>(unasked_bytes(c, config, op));
    unasked +=
        std::min(quarter, bytes / static_cast<double>(chunk_of(c.plan)) * queued_bytes(c.plan));
  }
  if (unasked > quarter || members * 8 * queued_bytes(c.plan) > quarter) return;
  if (unpaced(c) || (w.bookkeeping > 0 && falls_behind(c.plan))) return;
  c.broken("memory", std::to_string(c.run.overflowed) + " datagrams found a receiver's queue full");
}

// Staging stays within its setting, and no rank is sent more than it can stage, unless a single
// operation exceeds the setting. Does not check parts of groups, whose operations differ. (Frames
// that are sent early have their own limits: a peer that exceeds them fails the group, and no plan
// explains that.)
void staging(const Case& c, const Config& config) {
  for (size_t g = 0; g < c.run.groups.size(); g++) {
    const uint64_t drops = c.run.groups[g].total(Counter::staging_drops);
    uint64_t most = 0;
    for (const PlannedOp& op : c.plan.ops) {
      if (op.group == g) most = std::max(most, most_staged(c, config, op));
    }
    if (drops == 0 || config.staging < most || c.run.groups[g].parts) continue;
    c.broken("memory", std::to_string(drops) + " chunks sent to ranks that could not keep them");
  }
  if (c.run.overstaged > 0) {
    c.broken("memory", std::to_string(c.run.overstaged) + " bytes staged beyond the setting");
  }
}

// ---- the heap ----

// Amounts that a group's operations move, in total and at one member.
struct Load {
  uint64_t multicast = 0;      // bytes of all blocks that go by multicast
  uint64_t contributions = 0;  // bytes that an owner folds
  uint64_t results = 0;        // folded blocks of reduces, which belong to the root
  uint64_t exchanged = 0;      // bytes of exchanges that others send unasked, with their cost
  uint64_t messages = 0;       // bytes sent with their heads, and the record of each message
  uint64_t operations = 0, reductions = 0, exchanges = 0, streams = 0, chunks = 0;
};

Load load_of(const Plan& plan, uint32_t g, const Agreed& agreed) {
  Load load;
  for (const PlannedOp& op : plan.ops) {
    if (op.group != g) continue;
    const uint64_t members = plan.groups[g].ranks.size(), bytes = std::max(op.bytes, op.odd_bytes);
    const bool reduction = wire::is_reduction(op.kind);
    const uint64_t share = op.kind == wire::Kind::kReduceScatter ? bytes : bytes / members + 64;
    // Small all_reduces are sent whole to all.
    const bool one_step = op.kind == wire::Kind::kAllreduce && bytes * members <= kOneStepBytes;
    load.operations++;
    if (wire::is_exchange(op.kind)) {
      load.exchanges++;
      load.exchanged += (members - 1) * early_cost(std::min<uint64_t>(bytes, kMostUnasked));
      continue;
    }
    if (op.kind != wire::Kind::kReduceScatter && op.kind != wire::Kind::kReduce) {
      const bool all = op.kind == wire::Kind::kAllgather || one_step;
      load.multicast += all ? bytes * members : bytes;
      load.streams += op.kind == wire::Kind::kBroadcast ? 1 : members;
    }
    if (reduction) {
      load.contributions += share * (members - 1);
      if (op.kind == wire::Kind::kReduce) load.results += share;
      load.reductions++;
      load.streams += members;
    }
  }
  for (const PlannedMessage& one : plan.messages) {
    if (one.group == g) load.messages += kMessage + std::min<uint64_t>(one.bytes, 32u << 10);
  }
  load.chunks = load.multicast / agreed.chunk + load.streams;
  return load;
}

// Bytes that docs/memory.md allows a rank for a group, limited to what this plan can use.
uint64_t allowed(const Case& c, const Config& config, uint32_t g) {
  const uint64_t members = c.plan.groups[g].ranks.size();
  const Load load = load_of(c.plan, g, *c.run.groups[g].agreed);
  const uint64_t parts = !c.run.groups[g].parts ? 0 : config.subgroups > 1 ? config.subgroups : 2;
  const uint64_t idle = (1 + parts) * (kIdleGroup + kIdlePeer * members) + kMakingPeer * members;
  // Records of operations: each rank's progress in each stream, a bit per chunk, the control tree.
  const uint64_t records = load.operations * kOperation + load.streams * kStream + load.chunks / 4 +
                           load.operations * members * kTreeEntry +
                           load.exchanges * members * kExchangePeer;
  const uint64_t early =
      std::min<uint64_t>(config.staging, load.multicast + load.chunks * 96) +
      std::min<uint64_t>(256 * 1024 * (members - 1), load.contributions + load.exchanged);
  const uint64_t kept =
      std::min<uint64_t>(config.retransmit, load.multicast + load.operations * kOperation);
  // Accumulators are whole segments.
  const uint64_t folds = std::min(3 * config.incast, 3 * load.contributions) +
                         2 * kMaxSegment * load.reductions +
                         (c.run.groups[g].parts ? 2 * 256 * 1024 : 0);
  return idle + records + early + kept + folds + load.results + load.messages;
}

// Memory of lanes' tables that remains when all groups are gone. A lane keeps a record of each
// station that it has met, and why it was lost: one per aggregator, lane and part of a group, and
// another for each time it was lost. It also keeps a record of each rank that has ended.
uint64_t most_left(const Case& c, const Config& config) {
  constexpr uint64_t kStation = 1024, kRank = 160;
  uint64_t parts = 0;
  for (const GroupEnd& group : c.run.groups) {
    parts += 1 + (!group.parts ? 0 : std::max<uint64_t>(2, config.subgroups));
  }
  return kMostLeft + kRank * c.run.heap.size() + kStation * 2 * parts * c.plan.aggregators.size();
}

// Does not check groups that were never made, whose amounts are unknown.
void heap(const Case& c, const Config& config) {
  for (uint32_t rank = 0; rank < c.run.heap.size(); rank++) {
    uint64_t most = kRankItself;
    bool known = true;
    for (uint32_t g = 0; g < c.run.groups.size(); g++) {
      const auto& ranks = c.plan.groups[g].ranks;
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
      known = known && c.run.groups[g].agreed.has_value();
      most += known ? allowed(c, config, g) : 0;
    }
    if (!known) continue;
    most = most * 6 / 5;
    const HeapEnd& heap = c.run.heap[rank];
    const std::string who = "rank " + std::to_string(rank) + ": ";
    if (heap.most > most) {
      c.broken("memory", who + std::to_string(heap.most) + " bytes of heap, expected at most " +
                             std::to_string(most));
    }
    const bool gone = c.run.closed && c.run.still && c.causes.culprits.count(rank) == 0;
    if (gone && heap.left > most_left(c, config)) {
      c.broken("memory", who + std::to_string(heap.left) +
                             " bytes of heap are left when all groups are gone");
    }
  }
}

}  // namespace

void memory_laws(const Case& c) {
  const Config config = config_of(c.plan).value();
  overflow(c, config);
  staging(c, config);
  heap(c, config);
}

}  // namespace mcast::sim
