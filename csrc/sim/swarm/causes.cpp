// Computes how long a fault keeps its rank silent: a pause for its own length; a fault that loses
// datagrams and segments up to twice its length plus a timer of the stream, since the stream's
// timers have doubled meanwhile. Silences that follow each other closely may count as one, even of
// different ranks.
#include "sim/swarm/causes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/network/flow_options.h"

namespace mcast::sim {

namespace {

constexpr FlowOptions kStreams;        // the options of plans' worlds
constexpr Nanos kApart = 2 * kSecond;  // silences further apart than this are separate

struct Silence {
  Nanos from = 0, to = 0;
};

Nanos after(Nanos time, Nanos more) { return time > kNever - more ? kNever : time + more; }

Nanos longest_run(std::vector<Silence> all) {
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.from < b.from; });
  Nanos longest = 0, from = 0, to = -kApart;
  for (const Silence& one : all) {
    if (one.from > after(to, kApart)) from = one.from;
    to = std::max(to, one.to);
    longest = std::max(longest, to - from);
  }
  return longest;
}

// Returns true if streams may lose segments, and then wait for timers.
bool loses_segments(const Plan& plan) {
  const PlannedWorld& w = plan.world;
  return w.queue != 0 || w.interface != 0 ||
         std::any_of(plan.faults.begin(), plan.faults.end(),
                     [](const auto& f) { return f.what == FaultKind::kLoss && f.rate > 0; });
}

// Returns true if a queue cannot hold one packet of each rank: then streams lose whole windows, and
// timers that expire together collide again.
bool meets_in_queues(const Plan& plan) {
  const uint64_t most = uint64_t{plan.ranks()} * 3000;
  const PlannedWorld& w = plan.world;
  return (w.queue != 0 && w.queue < most) || (w.interface != 0 && w.interface < most);
}

// Returns true if probes may delay control frames beyond patience. All ranks probe every group when
// it is made, as fast as if links carried 32 MiB/s (protocol/probe.cpp); a ping and its reply both
// wait behind the probes in a link's queue.
bool probes_hide_words(const Plan& plan, Nanos patience) {
  double bytes = 0;
  for (const PlannedGroup& group : plan.groups) {
    bytes += static_cast<double>(group.ranks.size() * plan.world.datagram);
  }
  return 4 * bytes / plan.world.rate * 1e9 > static_cast<double>(patience);
}

// Bytes that one connection carries for the operation if everything goes by streams.
double streamed(const PlannedOp& op, double members) {
  const auto block = static_cast<double>(std::max(op.bytes, op.odd_bytes));
  const bool each = op.kind == wire::Kind::kAllgather || op.kind == wire::Kind::kReduceScatter ||
                    wire::is_exchange(op.kind);
  return each ? block * members : block;
}

// Returns true if data may delay control frames beyond patience. Control frames wait in a link's
// queue behind data: the data that roots may have under way, and a stream that repairs a rank that
// receives no multicast. A ping and its reply may both wait.
bool data_hides_words(const Plan& plan, Nanos patience) {
  const PlannedWorld& w = plan.world;
  double bytes = 0;
  for (const PlannedOp& op : plan.ops) {
    bytes += streamed(op, static_cast<double>(plan.groups[op.group].ranks.size()));
  }
  for (const PlannedMessage& one : plan.messages) bytes += static_cast<double>(one.bytes);
  double held =
      std::min(2 * bytes, static_cast<double>(w.budget) / 2 + static_cast<double>(kStreams.window));
  if (w.queue != 0) held = std::min(held, static_cast<double>(w.queue));
  return 2 * held / w.rate * 1e9 > static_cast<double>(patience);
}

double worst_loss(const Plan& plan) {
  double worst = 0;
  for (const PlannedFault& f : plan.faults) {
    if (f.what == FaultKind::kLoss) worst = std::max(worst, f.rate * f.burst);
  }
  return worst;
}

// Links between two hosts, in each direction.
double links_between_hosts(const Plan& plan) {
  const std::string& topology = plan.world.topology;
  return topology.rfind("star", 0) == 0 ? 2 : topology.rfind("leafspine", 0) == 0 ? 4 : 6;
}

// Time that a stream of `bytes` waits for its timers on links that lose packets. A run of losses
// that takes the end of a window, or its acknowledgement, is detected after two round trips by an
// extra packet; if that is lost too, after a timer, doubled each time. The loss rate limits the
// window to about two segments, so every second run takes its end.
Nanos timers_of_losses(const Plan& plan, double bytes) {
  double worst = 0;
  for (const PlannedFault& f : plan.faults) {
    if (f.what != FaultKind::kLoss || f.rate == 0) continue;
    const double ways = 2 * links_between_hosts(plan);
    const double runs = ways * f.rate / f.burst;
    const double lost = 1 - std::pow(1 - f.rate, ways);
    const double again = lost + (1 - lost) * (1 - 1 / f.burst);
    const double doubled = 1 / std::max(0.1, 1 - 2 * lost);
    worst = std::max(worst, runs / 2 * again * doubled);
  }
  return static_cast<Nanos>(bytes / static_cast<double>(kStreams.segment) * worst *
                            static_cast<double>(kStreams.timeout));
}

// A window whose tail is lost waits until its root announces what it has sent: first after up to 25
// ms, then three times by multicast within 7 ms, then by stream. One run of losses may take all
// multicast announcements, since a run counts datagrams and few others are sent.
double timers_of_tails(const Plan& plan, const Config& config) {
  constexpr auto kTail = static_cast<double>(32 * kMilli);
  double rate = 0;
  for (const PlannedFault& f : plan.faults) {
    if (f.what == FaultKind::kDrop) rate = std::max(rate, f.rate);
  }
  const PlannedWorld& w = plan.world;
  double windows = 0;
  for (const PlannedOp& op : plan.ops) {
    const auto members = static_cast<double>(plan.groups[op.group].ranks.size());
    const double chains =
        std::min(members, static_cast<double>(std::max<uint64_t>(1, config.chains)));
    const double pool = static_cast<double>(w.budget) / 2 / chains;
    const double window = config.window != 0 ? static_cast<double>(config.window) : 65536;
    const double least = 4 * static_cast<double>(w.datagram);
    windows += streamed(op, members) / std::max(least, std::min(window, pool));
  }
  return windows * std::min(1.0, 2 * rate) * kTail;
}

void note_fault(const PlannedFault& fault, Causes& causes, std::vector<Silence>& silences) {
  const auto silent = [&](Nanos length, bool heals) {
    if (after(fault.at, length) - fault.at > causes.patience / 2) {
      causes.culprits.insert(fault.rank);
      causes.return_to_life = causes.return_to_life || heals;
    } else {
      silences.push_back({fault.at, fault.at + length});
    }
  };
  const bool heals = fault.length != kNever;
  const auto cut_off = [&] {
    silent(heals ? 2 * fault.length + 2 * kStreams.timeout : kNever, heals);
  };
  switch (fault.what) {
    case FaultKind::kPause:
      return silent(fault.length, heals);
    case FaultKind::kIsolate:
      return cut_off();
    case FaultKind::kCut:
      cut_off();
      if (causes.culprits.count(fault.rank) == 0) return;
      // Each of the two misses the other, and multicast carries the reports of both.
      if (fault.peer != kNoMember) causes.culprits.insert(fault.peer);
      causes.return_to_life = true;
      return;
    case FaultKind::kDelay:  // for a request, its reply, and retransmissions in between
      silences.push_back({fault.at, fault.at + 8 * fault.much});
      return;
    case FaultKind::kKill:
    case FaultKind::kAbsent:
      causes.culprits.insert(fault.rank);
      return;
    case FaultKind::kReset:
      causes.culprits.insert(fault.rank);
      causes.culprits.insert(fault.peer);
      return;
    case FaultKind::kAbort:
      causes.aborts = true;
      return;
    case FaultKind::kClose:
      causes.closes = true;
      return;
    default:
      return;
  }
}

double bytes_of(const PlannedOp& op, double members) {
  // Bytes on a link, and repairs over streams from one rank to all others.
  return streamed(op, members) * members + 4096 * members;
}

// Timers that may have to expire besides, by a clock of the usual rate: cutoffs and requests; lost
// probes, of a group and of its path; streams that wait for their timers, which take longer the
// longer they were cut off.
Nanos timers_of(const Plan& plan, const Config& config, uint32_t lane) {
  const PlannedWorld& w = plan.world;
  Nanos timers = kSecond;
  bool lossy = w.queue != 0 || w.interface != 0 || w.budget < 500'000 || w.jitter != 0;
  for (const PlannedFault& f : plan.faults) {
    if (lane != kNoMember && f.lane != kNoMember && f.lane != lane) continue;
    lossy = lossy || f.rate > 0 || f.what == FaultKind::kMute || f.what == FaultKind::kFlood;
    if (f.what == FaultKind::kMute) timers += 4 * kSecond;
    const bool cuts = f.what == FaultKind::kIsolate || f.what == FaultKind::kCut;
    if (cuts && f.length != kNever) timers += 2 * f.length + kSecond;
    if (f.what == FaultKind::kDelay) timers += 8 * f.much;
    // Unanswered requests are repeated after up to a second.
    if (f.what == FaultKind::kForget) timers += 4 * kSecond;
  }
  if (lossy) timers += 2 * config.probe_timeout;
  // Each aggregator may be given up once for each time that it comes back; the first wait is when
  // the group is made.
  const Nanos station = 2 * config.aggregator_patience + 2 * kSecond;
  timers += station * static_cast<Nanos>(plan.aggregators.size());
  for (const PlannedFault& f : plan.faults) timers += is_of_aggregator(f.what) ? station : 0;
  if (loses_segments(plan)) timers += 8 * kSecond;
  return timers;
}

void note_work(const Plan& plan, Causes& causes) {
  double bytes = 0, slow = 1, by_stream = 0;
  for (const PlannedOp& op : plan.ops) {
    const auto members = static_cast<double>(plan.groups[op.group].ranks.size());
    bytes += bytes_of(op, members);
    by_stream += streamed(op, members);
    causes.last = std::max(causes.last, op.at + (op.late != kNoMember ? op.by : 0));
    if (op.timeout < 1800 * kSecond) causes.timeouts = true;
    if (op.odd != kNoMember && op.odd_bytes != op.bytes) causes.mismatches = true;
  }
  for (const PlannedMessage& one : plan.messages) {
    bytes += static_cast<double>(one.bytes) + 4096;
    by_stream += static_cast<double>(one.bytes);
    causes.last = std::max({causes.last, one.at, one.by});
    if (one.timeout < 1800 * kSecond) causes.timeouts = true;
  }
  for (const PlannedGroup& group : plan.groups) causes.last = std::max(causes.last, group.at);
  for (const PlannedRank& rank : plan.special) slow = std::max(slow, rank.slow);
  for (const PlannedFault& fault : plan.faults) {
    causes.last = std::max(causes.last, fault.last_change());
  }
  const double packets = bytes / static_cast<double>(plan.world.datagram);
  const double model = 20 * (bytes / plan.world.rate * 1e9 + packets * 1000 * slow) +
                       static_cast<double>(timers_of_losses(plan, by_stream));
  const Config config = config_of(plan).value();
  const auto with_timers = [&](uint32_t lane) {
    const auto timers = static_cast<double>(timers_of(plan, config, lane));
    const double waited = (timers + timers_of_tails(plan, config)) / causes.slowest;
    return static_cast<Nanos>(std::min(model + waited, 1e18));
  };
  causes.work = with_timers(kNoMember);
  for (const uint32_t lane : {0u, 1u}) causes.work_of[lane] = with_timers(lane);
}

// Returns true if a call's own limit may expire, by the fastest clock, before a lost rank is
// detected, by the slowest clock.
bool limits_end_before_silence(const Plan& plan, const Causes& causes) {
  if (causes.nobody_is_lost()) return false;
  const auto too_early = [&](const auto& called) {
    return static_cast<double>(called.timeout) / causes.fastest < causes.found_out();
  };
  return std::any_of(plan.ops.begin(), plan.ops.end(), too_early) ||
         std::any_of(plan.messages.begin(), plan.messages.end(), too_early);
}

}  // namespace

Causes causes_of(const Plan& plan) {
  Causes causes;
  for (const PlannedRank& rank : plan.special) {
    causes.slowest = std::min(causes.slowest, rank.clock);
    causes.fastest = std::max(causes.fastest, rank.clock);
  }
  for (const PlannedAggregator& one : plan.aggregators) {
    causes.slowest = std::min(causes.slowest, one.clock);
  }
  causes.limit = config_of(plan).value().liveness_limit;
  causes.patience = static_cast<Nanos>(static_cast<double>(causes.limit) / causes.fastest);
  std::vector<Silence> silences;
  for (const PlannedFault& fault : plan.faults) note_fault(fault, causes, silences);
  note_work(plan, causes);
  if (loses_segments(plan)) {
    causes.vague = causes.patience < 4 * kSecond || worst_loss(plan) > 0.1 || meets_in_queues(plan);
  }
  causes.vague = causes.vague || probes_hide_words(plan, causes.patience) ||
                 data_hides_words(plan, causes.patience);
  if (longest_run(silences) > causes.patience / 2) causes.vague = true;
  if (limits_end_before_silence(plan, causes)) causes.timeouts = true;
  return causes;
}

}  // namespace mcast::sim
