// The laws (invariants of a run), one function each, over the results of its calls and groups. The
// possible failures, culprits and durations are first derived from the plan (causes.h); each
// function documents the cases that it therefore does not check.
#include "sim/swarm/laws.h"

#include <algorithm>
#include <cctype>

#include "collective/movements/exchange_run.h"
#include "sim/swarm/case.h"

namespace mcast::sim {

namespace {

constexpr uint64_t kMostSpins = 3;

bool lost(const Case& c, uint32_t rank) {
  return std::any_of(c.plan.faults.begin(), c.plan.faults.end(), [&](const PlannedFault& f) {
    return f.rank == rank &&
           (f.what == FaultKind::kKill || (f.what == FaultKind::kPause && f.length == kNever));
  });
}

// ---- bytes, once ----

// No call ends twice; calls that end well have the right bytes, and nothing was written beside
// them. Accesses after the end need no check: the memory is inaccessible then and faults.
void bytes_and_once(const Case& c) {
  for (const CallEnd& call : c.run.calls) {
    if (call.ends > 1)
      c.broken("once", c.name(call) + "ended " + std::to_string(call.ends) + " times");
    if (!call.wrong.empty()) c.broken("bytes", c.name(call) + call.wrong);
  }
}

// ---- agreement ----

// A gathered or scattered block that is sent unasked needs no message from its receiver. (Within a
// host, a block of any length may be stored in a slot.)
bool needs_in_exchange(const Case& c, const PlannedOp& op, Member m, Member of) {
  if (op.kind == wire::Kind::kAllToAll) return true;
  const bool gives = op.kind == wire::Kind::kGather ? m == op.root : of == op.root;
  const bool asked = c.run.groups[op.group].agreed && c.bytes_of(op, m) > kMostUnasked;
  return gives || (asked && (m == op.root || of == op.root));
}

// Returns true if the success of this call at `m` requires that `of` has called it: for its data,
// for its message (in an all_to_all even for an empty block), or because the end waits for all.
// Does not check small broadcasts, which end where their data is, and other calls that move no
// data.
bool needs(const Case& c, const PlannedOp& op, Member m, Member of) {
  if (op.kind == wire::Kind::kBarrier) return true;
  if (c.bytes_of(op, m) == 0 && op.kind != wire::Kind::kAllToAll) return false;
  if (wire::is_exchange(op.kind)) return needs_in_exchange(c, op, m, of);
  if (op.kind == wire::Kind::kBroadcast) return of == op.root && m != op.root;
  if (op.kind == wire::Kind::kReduce) return m == op.root;
  return true;
}

// The share of an all_reduce that its ranks own may be empty; then nobody waits for them.
bool may_be_empty(const PlannedOp& op) {
  return op.kind == wire::Kind::kReduce || op.kind == wire::Kind::kAllreduce;
}

// Returns true if these two have made calls that do not match; in an all_to_all only the blocks
// between the two count.
bool called_differently(const Case& c, const PlannedOp& op, Member one, Member other) {
  if (op.odd != one && op.odd != other) return false;
  if (op.kind != wire::Kind::kAllToAll) {
    return op.odd_bytes != op.bytes && op.odd_bytes != 0 && !may_be_empty(op);
  }
  const ExchangeShape here = shape_of(c.plan, op, one), there = shape_of(c.plan, op, other);
  return here.length(one, other) != there.length(one, other) ||
         here.length(other, one) != there.length(other, one);
}

void agreement(const Case& c) {
  for (const CallEnd& one : c.run.calls) {
    if (one.ends == 0 || !one.status.ok()) continue;
    for (const CallEnd& other : c.run.calls) {
      if (other.op != one.op || &other == &one) continue;
      const PlannedOp& op = c.op(one);
      if (!needs(c, op, one.member, other.member)) continue;
      if (!other.called || other.posted > one.done) {
        c.broken("agreement", c.name(one) + "succeeded before rank " + std::to_string(other.rank) +
                                  " called it");
      }
      if (called_differently(c, op, one.member, other.member) && other.ends > 0 &&
          other.status.ok() && needs(c, op, other.member, one.member)) {
        c.broken("agreement",
                 c.name(one) + "succeeded, and so did a rank that called something else");
      }
    }
  }
}

bool is_barrier(const PlannedOp& op) { return op.kind == wire::Kind::kBarrier; }

// How long a rank's process was paused between two moments.
Nanos stopped(const Case& c, uint32_t rank, Nanos from, Nanos to) {
  Nanos sum = 0;
  for (const PlannedFault& f : c.plan.faults) {
    if (f.what != FaultKind::kPause || f.rank != rank) continue;
    sum += std::max<Nanos>(0, std::min(f.end(), to) - std::max(f.at, from));
  }
  return sum;
}

// After the first failure of a group at a rank all its calls there fail: on the same lane at once;
// on the other lane after 50 ms (network_open.cpp) by a clock that may be slow, plus a command's
// delay, while the process runs (data that arrived during a pause is read before a timer that
// expired then). A refused call reports the failure of either lane; a barrier ends when both have
// failed. Does not check calls that a rank refuses because it has closed the group itself.
void later_calls_fail(const Case& c) {
  const auto wait = static_cast<Nanos>(static_cast<double>(100 * kMilli) / c.causes.slowest);
  for (const CallEnd& failed : c.run.calls) {
    if (failed.ends == 0 || failed.status.ok()) continue;
    const bool refused = failed.done == failed.posted;
    if (refused && failed.status.code() == Code::kClosed) continue;
    const PlannedOp& op = c.op(failed);
    for (const CallEnd& later : c.run.calls) {
      const PlannedOp& other = c.op(later);
      if (other.group != op.group || later.member != failed.member) continue;
      if (later.ends == 0 || !later.status.ok()) continue;
      const bool one_lane = !refused && !is_barrier(op) && !is_barrier(other) &&
                            lane_of(op.kind) == lane_of(other.kind);
      const Nanos late =
          one_lane ? 0
                   : wait + c.plan.world.command + stopped(c, failed.rank, failed.done, later.done);
      if (later.done <= failed.done + late) continue;
      c.broken("agreement", c.name(later) + "succeeded after op " + std::to_string(failed.op) +
                                " of the same group had failed there");
    }
  }
}

// ---- blame ----

bool names(const std::string& text, size_t member) {
  const std::string word = "rank " + std::to_string(member);
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

// The same for the number that the rank has in a part of the group; the message lists the ranks of
// the part: "rank 3 ... (ranks of 'g0/rail 1': 1, 3, 5, 7; ...".
bool names_in_part(const std::string& text, size_t member) {
  const std::string lead = "ranks of '";
  for (size_t at = text.find(lead); at != std::string::npos; at = text.find(lead, at + 1)) {
    size_t next = text.find("': ", at);
    for (size_t rank = 0; next != std::string::npos; rank++) {
      next += rank == 0 ? 3 : 2;
      const size_t end = text.find_first_not_of("0123456789", next);
      if (end == std::string::npos || end == next) break;
      if (std::stoul(text.substr(next, end - next)) == member && names(text, rank)) return true;
      next = text[end] == ',' ? end : std::string::npos;
    }
  }
  return false;
}

// The reason in an error text, without the leading operation and own rank.
std::string reason_of(const std::string& message) {
  const size_t limit = message.find("): ");
  return limit == std::string::npos ? message : message.substr(limit + 3);
}

// Returns true if the plan explains an error with this code at any rank.
bool explained(const Case& c, Code code) {
  const Causes& causes = c.causes;
  switch (code) {
    case Code::kPeerLost:
      // A rank that ended after a failure of its group may be seen as lost before that failure is
      // reported.
      return !causes.nobody_is_lost() || causes.closes || has(c.plan, FaultKind::kExit);
    case Code::kTimeout:
      return causes.timeouts || causes.closes;
    case Code::kMismatch:
      return causes.mismatches;
    case Code::kAborted:
      // A group with dead ranks is not made, or is aborted by the runner.
      return causes.aborts || !causes.nobody_is_lost();
    case Code::kClosed:
      return true;  // after an early leave, remaining ranks may still learn of a failure
    default:
      return false;
  }
}

}  // namespace

void blame_one(const Case& c, const std::string& where, uint32_t group, const Status& status) {
  const Causes& causes = c.causes;
  if (causes.harmless()) return c.broken("blame", where + "failed: " + status.to_string());
  // World::part_made(): the outcome for the part's ranks is reported for the part itself.
  if (status.code() == Code::kUnavailable && has_parts(c.plan)) return;
  if (!explained(c, status.code())) {
    return c.broken("blame", where + "unexplained: " + status.to_string());
  }
  // The rank is checked only if the lost ones stay silent and there is no other cause.
  const bool others = causes.closes || has(c.plan, FaultKind::kExit);
  if (status.code() != Code::kPeerLost || causes.return_to_life || causes.vague || others) return;
  const std::vector<uint32_t>& ranks = c.plan.groups[group].ranks;
  const std::string reason = reason_of(status.message());
  for (size_t m = 0; m < ranks.size(); m++) {
    if (causes.culprits.count(ranks[m]) == 0) continue;
    if (names(reason, m) || names_in_part(reason, m)) return;
  }
  c.broken("blame", where + "does not name a lost rank: " + status.to_string());
}

namespace {

// No operation fails if all faults heal within half of the patience of the fastest clock; every
// failure has a cause in the plan; a lost rank is one of those that have a fault. Does not check a
// culprit's own errors, nor the ranks blamed by a rank that receives nothing.
void blame(const Case& c) {
  for (const CallEnd& call : c.run.calls) {
    if (call.ends == 0 || call.status.ok() || c.causes.culprits.count(call.rank) > 0) continue;
    blame_one(c, c.name(call), c.op(call).group, call.status);
  }
  for (size_t g = 0; g < c.run.groups.size(); g++) {
    const GroupEnd& group = c.run.groups[g];
    for (size_t m = 0; m < group.making.size(); m++) {
      const uint32_t rank = c.plan.groups[g].ranks[m];
      if (group.making[m].ok() || c.causes.culprits.count(rank) > 0) continue;
      blame_one(c, "making group " + std::to_string(g) + " at rank " + std::to_string(rank) + ": ",
                static_cast<uint32_t>(g), group.making[m]);
    }
  }
}

// ---- bounded time ----

// Operations of one lane do not wait for the other: if nothing fails, each call ends within the
// time for its bytes, counted from when all members have made it and the faults of its lane are
// over.
void lanes_by_themselves(const Case& c) {
  const Causes& causes = c.causes;
  if (!causes.harmless() || causes.timeouts || !c.run.over) return;
  for (const CallEnd& call : c.run.calls) {
    const PlannedOp& op = c.op(call);
    if (call.ends == 0 || is_barrier(op)) continue;
    const uint32_t lane = lane_of(op.kind);
    Nanos from = 0;
    for (const CallEnd& other : c.run.calls) {
      if (other.op == call.op) from = std::max(from, other.posted);
    }
    for (const PlannedFault& fault : c.plan.faults) {
      if (fault.lane != kNoMember && fault.lane != lane) continue;
      from = std::max(from, fault.last_change());
    }
    if (from == kNever || call.done <= from + causes.work_of[lane]) continue;
    return c.broken("time", c.name(call) + "ended after " + ms(call.done) + ", expected within " +
                                ms(from + causes.work_of[lane]) + " by the faults of its lane");
  }
}

// Everything ends: if nothing fails, within the time for its bytes; else once the lost ranks have
// been detected and a group that cannot be made has been given up. Does not check calls that have a
// limit of their own (half an hour by default).
void bounded_time(const Case& c) {
  const Causes& causes = c.causes;
  if (c.run.busy) return c.broken("time", "more than all events after " + ms(c.run.over_at));
  for (const CallEnd& call : c.run.calls) {
    if (call.ends > 0 || lost(c, call.rank)) continue;
    if (!call.called && !c.run.groups[c.op(call).group].ready.empty()) {
      const GroupEnd& group = c.run.groups[c.op(call).group];
      if (group.ready[call.member]) continue;
    }
    if (c.run.over) continue;
    return c.broken("time", c.name(call) + (call.called ? "never ended" : "was never called") +
                                (c.run.stuck ? ", nothing was left to happen" : ""));
  }
  for (const MessageEnd& end : c.run.messages) {
    if (c.run.over || end.ends > 0 || !end.carried || !end.ready || lost(c, end.rank)) continue;
    return c.broken("time", c.name(end) + (end.called ? "never ended" : "was never called") +
                                (c.run.stuck ? ", nothing was left to happen" : ""));
  }
  if (!c.run.over) return c.broken("time", "not over, and no call is missing");
  Nanos most = causes.last + causes.work;
  if (!causes.harmless()) {
    most += static_cast<Nanos>(causes.found_out());
    if (!causes.nobody_is_lost()) most += kMakeLimit;
  }
  if (causes.timeouts || causes.vague) return;
  if (c.run.over_at > most) {
    c.broken("time", "over after " + ms(c.run.over_at) + ", expected within " + ms(most));
  }
  lanes_by_themselves(c);
}

// ---- quiescence ----

// Does not check ranks whose clocks jump: their timers may expire at once.
void quiet(const Case& c) {
  if (c.run.spins > kMostSpins) {
    c.broken("quiet", "a lane spun for " + std::to_string(c.run.spins) + " turns past a deadline");
  }
  if (!c.run.over) return;
  // A group keeps trying to contact aggregators that are gone or had no capacity.
  const bool asks = !c.plan.aggregators.empty();
  if (c.run.sent_idle > 0 && c.causes.harmless() && !asks) {
    c.broken("quiet", std::to_string(c.run.sent_idle) + " datagrams or frames with nothing to do");
  }
  if (!c.run.closed) c.broken("quiet", "a close has not ended");
  if (c.run.sent_closed > 0) {
    c.broken("quiet", std::to_string(c.run.sent_closed) + " datagrams or frames after all closes");
  }
  if (!c.run.still) c.broken("quiet", "something still happens long after all closes");
}

// ---- conservation ----

std::string differ(const std::string& what, uint64_t have, uint64_t want) {
  return what + ": " + std::to_string(have) + ", expected " + std::to_string(want);
}

void balance_group(const Case& c, size_t g) {
  const GroupEnd& group = c.run.groups[g];
  const std::string where = "group " + std::to_string(g) + ": ";
  const uint64_t switches = group.total(Counter::path_switches);
  if (!group.multicast || group.parts || switches > 0) return;
  const uint64_t members = c.plan.groups[g].ranks.size();
  const uint64_t placed = group.total(Counter::chunks_placed);
  if (placed != group.chunks * (members - 1)) {
    c.broken("balance", where + differ("chunks placed", placed, group.chunks * (members - 1)));
  }
  const uint64_t again = group.total(Counter::fetch_timeouts) *
                         std::min(group.request, std::max<uint64_t>(1, group.chunks));
  const uint64_t repairs = group.total(Counter::repair_chunks_sent);
  if (repairs > group.total(Counter::gaps) + again) {
    c.broken(
        "balance",
        where + differ("repair chunks", repairs, group.total(Counter::gaps) + again) + " at most");
  }
}

// Each block that one rank had for another crossed the network once. Does not check ranks of one
// host, which read blocks in place.
void balance_exchanges(const Case& c, size_t g) {
  const GroupEnd& group = c.run.groups[g];
  if (!group.agreed) return;
  for (const Counter counter : {Counter::exchange_bytes_sent, Counter::exchange_bytes_received}) {
    if (group.total(counter) == group.exchanged) continue;
    c.broken("balance", "group " + std::to_string(g) + ": " +
                            differ(counter_name(counter), group.total(counter), group.exchanged));
  }
}

// Holds if all calls succeeded and no group has changed its path: every chunk was placed once at
// every other rank; every block of an exchange crossed once; each chunk was multicast once, plus
// the counted repetitions; every frame was received; repairs answer losses or requests that timed
// out. Does not check frames of groups that end early, chunks of groups with parts, and datagram
// counts where devices gather late, interfaces refuse data, or a host is cut off.
void balance(const Case& c) {
  if (!all_well(c)) return;
  for (const PlannedGroup& group : c.plan.groups) {
    if (group.early != 0) return;
  }
  uint64_t chunks = 0, sent = 0, received = 0, switches = 0;
  for (size_t g = 0; g < c.run.groups.size(); g++) {
    balance_group(c, g);
    balance_exchanges(c, g);
    const GroupEnd& group = c.run.groups[g];
    if (group.multicast) chunks += group.chunks + group.total(Counter::remulticast_chunks);
    switches += group.total(Counter::path_switches);
    sent += group.total(Counter::frames_sent);
    received += group.total(Counter::frames_received);
  }
  const uint64_t lost = c.run.count(FaultKind::kForget);
  // (station_laws.cpp checks the frames of runs with stations.)
  if (sent != received + lost && c.plan.aggregators.empty()) {
    c.broken("balance", differ("frames received", received + lost, sent));
  }
  const PlannedWorld& w = c.plan.world;
  const bool exact = w.gathers == 0 && w.interface == 0 && switches == 0 &&
                     !has(c.plan, FaultKind::kIsolate) && !has(c.plan, FaultKind::kRefuse) &&
                     !has_parts(c.plan);
  if (exact && c.run.data_packets != chunks) {
    c.broken("balance", differ("packets of data", c.run.data_packets, chunks));
  }
}

}  // namespace

std::vector<Finding> break_laws(const Plan& plan, const RunEnd& run) {
  std::vector<Finding> findings;
  const Case c{plan, run, causes_of(plan), findings};
  if (run.busy) {
    bounded_time(c);
    return findings;
  }
  bytes_and_once(c);
  agreement(c);
  later_calls_fail(c);
  blame(c);
  bounded_time(c);
  memory_laws(c);
  message_laws(c);
  quiet(c);
  station_laws(c);
  path_laws(c);
  balance(c);
  return findings;
}

std::string kind_of(const Finding& finding) {
  std::string kind = finding.law + ": ";
  for (const char ch : finding.text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(ch)) != 0;
    if (!digit) kind += ch;
  }
  return kind;
}

}  // namespace mcast::sim
