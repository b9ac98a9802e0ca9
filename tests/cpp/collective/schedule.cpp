// Draws a schedule field by field from its seed, from small sets of values that include the
// extremes.
#include "collective/schedule.h"

#include <algorithm>
#include <sstream>

#include "base/rng.h"
#include "runtime/group_base.h"
#include "transport/interceptor.h"
#include "wire/datagram.h"

namespace mcast::test {
namespace {

template <typename T>
T pick(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[rng.below(values.size())];
}

size_t pick_size(Rng& rng, size_t chunk, size_t most) {
  size_t size = 0;
  switch (rng.below(10)) {
    case 0:
      size = 0;
      break;
    case 1:
      size = 1;
      break;
    case 2:
      size = chunk - 1;
      break;
    case 3:
      size = chunk;
      break;
    case 4:
      size = chunk + 1;
      break;
    case 5:
      size = chunk * (1 + rng.below(40));
      break;
    case 6:
    case 7:
      size = 1 + rng.below(8 * chunk);
      break;
    default:
      size = 1 + rng.below(most);
      break;
  }
  return std::min(size, most);
}

void pick_reduction(Rng& rng, OpSpec& op) {
  op.kind = pick(rng, {wire::Kind::kReduceScatter, wire::Kind::kAllreduce, wire::Kind::kReduce});
  do {
    op.element = static_cast<Element>(1 + rng.below(10));
    op.reduction = static_cast<Reduction>(1 + rng.below(9));
  } while (!reducible(op.element, op.reduction));
}

std::vector<OpSpec> pick_ops(Rng& rng, const GroupParams& params, uint32_t ranks, size_t budget,
                             bool reduce) {
  std::vector<OpSpec> ops(1 + rng.below(6));
  for (OpSpec& op : ops) {
    const uint64_t kind = rng.below(10);
    op.kind = kind < 4   ? wire::Kind::kBroadcast
              : kind < 8 ? wire::Kind::kAllgather
                         : wire::Kind::kBarrier;
    if (reduce && rng.chance(0.7)) pick_reduction(rng, op);
    if (op.kind == wire::Kind::kBroadcast || op.kind == wire::Kind::kReduce) {
      op.root = static_cast<Member>(rng.below(ranks));
    }
    const size_t share = budget / ops.size() / ranks;
    const bool blocks = op.kind == wire::Kind::kAllgather || op.kind == wire::Kind::kReduceScatter;
    const size_t most = blocks ? share / ranks : share;
    if (op.kind != wire::Kind::kBarrier) {
      op.bytes = pick_size(rng, params.agreed.chunk, std::min(most, 600 * params.agreed.chunk));
      if (wire::is_reduction(op.kind)) op.bytes -= op.bytes % element_size(op.element);
    }
  }
  return ops;
}

// Replaces some of the operations by exchanges.
void pick_exchanges(uint64_t seed, uint32_t ranks, std::vector<OpSpec>& ops) {
  Rng rng(seed ^ 0x65786368ULL);
  for (OpSpec& op : ops) {
    if (rng.chance(0.3)) continue;
    const bool whole = op.kind == wire::Kind::kBarrier || op.bytes == 0;
    if (whole) op.bytes = rng.below(100'000);
    op.kind = pick(rng, {wire::Kind::kAllToAll, wire::Kind::kGather, wire::Kind::kScatter});
    op.root = static_cast<Member>(rng.below(ranks));
  }
}

// Some ranks share hosts, in any order.
std::vector<uint32_t> pick_hosts(uint64_t seed, uint32_t ranks) {
  Rng rng(seed ^ 0x686f737473ULL);
  if (ranks < 3 || rng.chance(0.5)) return {};
  std::vector<uint32_t> host_of(ranks);
  const auto hosts = static_cast<uint32_t>(2 + rng.below(ranks - 2));
  const bool blocks = rng.chance(0.5);
  for (uint32_t r = 0; r < ranks; r++) {
    host_of[r] = blocks      ? r * hosts / ranks
                 : r < hosts ? r
                             : static_cast<uint32_t>(rng.below(hosts));
  }
  return host_of;
}

// Repeats every datagram, or most of them, once or twice: at once, or long after its operation is
// over.
void pick_copies(uint64_t seed, SimFaults& f) {
  Rng rng(seed ^ 0x636f7069ULL);
  f.duplicate = pick<double>(rng, {1, 1, 0.5});
  f.copies = pick(rng, {1, 2, 3});
  f.copy_delay = pick<Nanos>(rng, {0, 100 * kMicro, 5 * kMilli, kSecond, 5 * kSecond});
}

// Chooses the first number so that the last operation has the last number that a group uses, or
// that the numbers cross the limit of a smaller or a signed type.
Sequence pick_first(uint64_t seed, size_t ops) {
  const auto count = static_cast<Sequence>(ops);
  Rng rng(seed ^ 0x66697273ULL);
  return pick<Sequence>(rng, {GroupBase::kSequences - count, GroupBase::kSequences - count,
                              0x80000000u - (count + 1) / 2, 0x10000u - (count + 1) / 2});
}

// Refuses now and then, or for hundreds of attempts in a row; from the probe on, or later.
std::string pick_refusals(uint64_t seed) {
  Rng rng(seed ^ 0x72656675ULL);
  return "refuse:rate=" + std::string(pick(rng, {"0.05", "0.3", "0.7"})) +
         ",burst=" + pick(rng, {"1", "8", "300"}) + ",after=" + pick(rng, {"0", "0", "60"}) +
         ",seed=" + std::to_string(seed);
}

}  // namespace

wire::Descriptor OpSpec::descriptor() const {
  wire::Descriptor d{kind, kind == wire::Kind::kBarrier ? uint8_t{0xff} : uint8_t{6}, kNoMember,
                     bytes, ""};
  if (wire::is_rooted(kind)) d.root = root;
  if (wire::is_reduction(kind)) {
    d.element = static_cast<uint8_t>(element);
    d.reduction = static_cast<uint8_t>(reduction);
  }
  return d;
}

bool Schedule::faultless() const {
  const SimFaults& f = net.faults;
  return f.drop == 0 && f.duplicate == 0 && f.reorder == 0 && f.corrupt == 0 && !replay &&
         net.jitter == 0 && pauses.empty() && refuse.empty();
}

std::string Schedule::describe() const {
  std::ostringstream out;
  const SimFaults& f = net.faults;
  out << "seed " << seed << ": " << ranks << " ranks, latency " << net.latency << ", stream "
      << net.stream_latency << ", rate " << net.rate << ", receive budget " << net.receive_budget
      << "; drop " << f.drop << " burst " << f.burst << " duplicate " << f.duplicate << " reorder "
      << f.reorder << "/" << f.reorder_delay << " corrupt " << f.corrupt
      << (net.gather_from == SIZE_MAX ? "" : ", gathers") << (f.copies > 1 ? ", twice" : "")
      << (replay ? ", replays" : "") << (refuse.empty() ? "" : ", " + refuse)
      << (from_callbacks ? ", posted from callbacks" : "");
  for (const Pause& p : pauses) {
    out << "; rank " << p.rank << " stopped at " << p.from << " for " << p.length;
  }
  for (size_t g = 0; g < groups.size(); g++) {
    const GroupParams& p = groups[g];
    out << "\n  group " << g << ": arity " << p.arity << " chunk " << p.agreed.chunk << " batch "
        << p.agreed.batch << " eager " << p.agreed.eager << " window " << p.agreed.window
        << " chains " << p.agreed.chains << " reorder " << p.agreed.reorder << " staging "
        << p.staging << " retransmit " << p.retransmit << " alpha " << p.alpha
        << (p.multicast.wanted ? "" : " ring") << (p.agreed.source_auth ? " digests" : "");
    out << " lane " << int{p.lane};
    if (p.first_sequence > 0) out << " from operation " << p.first_sequence;
    if (p.agreed.fold == FoldOrder::kTurn) out << " fold in turn";
    if (!p.host_of.empty()) out << " hosts";
    for (const uint32_t host : p.host_of) out << " " << host;
    out << "; ops";
    for (const OpSpec& op : ops[g]) {
      out << " " << wire::kind_name(op.kind) << "(" << op.bytes;
      if (wire::is_rooted(op.kind)) out << " root " << op.root;
      if (wire::is_reduction(op.kind)) {
        out << " " << reduction_name(op.reduction) << " " << element_name(op.element);
      }
      out << ")";
    }
  }
  return out.str();
}

namespace {

// Draws the network and its faults; returns a chunk's payload in bytes.
size_t pick_net(Rng& rng, uint64_t seed, const Flavour& flavour, Schedule& s) {
  s.net.seed = seed;
  s.net.latency = pick<Nanos>(rng, {20 * kMicro, kMicro, 300 * kMicro});
  s.net.stream_latency = pick<Nanos>(rng, {50 * kMicro, 10 * kMicro, 2 * kMilli});
  s.net.jitter = pick<Nanos>(rng, {0, 5 * kMicro, 100 * kMicro});
  if (flavour.faultless) s.net.jitter = 0;  // since jitter reorders
  const auto chunk = pick<size_t>(rng, {64, 256, 1408, 1408, 8192});
  s.net.max_datagram = chunk + wire::kDatagramHeader;
  if (seed % 2 == 1) s.net.gather_from = 1;
  s.net.receive_budget =
      pick<size_t>(rng, {133120, 133120, 32768, std::max<size_t>(8192, 8 * chunk), 1 << 20});
  if (!flavour.faultless) {
    s.net.rate = pick<double>(rng, {0, 0, 0, 1e7, 1.25e8});
    SimFaults& f = s.net.faults;
    f.drop = pick<double>(rng, {0, 0, 0.001, 0.01, 0.1, 0.3, 0.5});
    f.burst = pick<double>(rng, {1, 1, 4, 30});
    f.duplicate = pick<double>(rng, {0, 0, 0.02, 0.3});
    f.reorder = pick<double>(rng, {0, 0, 0.02, 0.3});
    f.reorder_delay = pick<Nanos>(rng, {100 * kMicro, kMilli, 20 * kMilli});
    f.corrupt = pick<double>(rng, {0, 0, 0.02, 0.2});
    s.replay = rng.chance(0.3);
    if (flavour.duplicates) pick_copies(seed, f);
    if (flavour.refusals) s.refuse = pick_refusals(seed);
  }
  return chunk;
}

// Draws the `g`-th group and its operations, with `budget` bytes in total.
void pick_group(Rng& rng, const Flavour& flavour, size_t g, size_t chunk, size_t budget,
                Schedule& s) {
  GroupParams p;
  p.tag = s.seed << 8;
  p.arity = pick<uint32_t>(rng, {2, 3, 4, 32});
  p.agreed.chunk = chunk;
  p.agreed.budget = s.net.receive_budget;
  p.agreed.batch = pick<size_t>(rng, {65536, 16384, 4096, chunk});
  p.agreed.eager = pick<size_t>(rng, {32768, 32768, 0, 1, 4096, 1 << 20});
  p.agreed.window = pick<size_t>(rng, {0, 0, 8 * chunk, 65536});
  p.agreed.chains = pick<uint32_t>(rng, {0, 0, 1, 2, 3, s.ranks});
  p.agreed.reorder = pick<uint32_t>(rng, {0, 0, 1, 8});
  p.agreed.source_auth = flavour.source_auth;
  p.alpha = pick<Nanos>(rng, {2 * kMilli, 2 * kMilli, 200 * kMicro, 20 * kMicro});
  p.multicast.wanted = !flavour.ring;
  if (!flavour.faultless) {
    p.staging = pick<size_t>(rng, {4 << 20, 0, 4096, 65536});
    p.retransmit = pick<size_t>(rng, {4 << 20, 1, 8192, 65536});
  }
  s.groups.push_back(p);
  if (flavour.reduce) p.agreed.incast = pick<size_t>(rng, {1 << 20, 1 << 20, 4096, 65536});
  if (flavour.reduce) p.host_of = pick_hosts(s.seed, s.ranks);
  if (flavour.reduce && mix64(s.seed ^ 0x666f6c64) % 2 == 1) p.agreed.fold = FoldOrder::kTurn;
  s.ops.push_back(pick_ops(rng, p, s.ranks, budget, flavour.reduce));
  if (flavour.exchange) pick_exchanges(s.seed + g, s.ranks, s.ops.back());
  p.lane = static_cast<uint8_t>(mix64(s.seed + g) % 2);
  if (flavour.near_the_end) p.first_sequence = pick_first(s.seed + g, s.ops.back().size());
  s.groups.back() = p;
}

// Draws the time at which each rank posts each operation.
void pick_times(Rng& rng, const Flavour& flavour, Schedule& s) {
  s.posts.resize(s.groups.size());
  const auto pace = pick<Nanos>(rng, {0, 100 * kMicro, 5 * kMilli, 50 * kMilli});
  for (size_t g = 0; g < s.groups.size(); g++) {
    for (uint32_t r = 0; r < s.ranks; r++) {
      Nanos at = flavour.faultless ? 0 : static_cast<Nanos>(rng.below(kMilli));
      if (!flavour.faultless && rng.chance(0.1)) at += static_cast<Nanos>(rng.below(3 * kSecond));
      std::vector<Nanos> times;
      for (size_t k = 0; k < s.ops[g].size(); k++) {
        times.push_back(at);
        if (pace > 0) at += static_cast<Nanos>(rng.below(static_cast<uint64_t>(pace)));
      }
      s.posts[g].push_back(times);
    }
  }
}

}  // namespace

// The order of the draws must not change, so that a seed always gives the same schedule.
Schedule make_schedule(uint64_t seed, const Flavour& flavour) {
  Rng rng(seed * 0x9e3779b97f4a7c15ULL + flavour.reduce * 4 + flavour.ring * 2 + flavour.faultless);
  Schedule s;
  s.seed = seed;
  s.ranks = static_cast<uint32_t>(rng.chance(0.04) ? 1 : 2 + rng.below(8));
  const size_t chunk = pick_net(rng, seed, flavour, s);
  const size_t groups = pick<size_t>(rng, {1, 1, 2, 3});
  const size_t budget = pick<size_t>(rng, {60'000, 400'000, 3'000'000}) / groups;
  for (size_t g = 0; g < groups; g++) pick_group(rng, flavour, g, chunk, budget, s);
  s.from_callbacks = rng.chance(0.15);
  pick_times(rng, flavour, s);
  Rng clocks(seed ^ 0x636c6f636bULL);
  for (uint32_t r = 0; r < s.ranks; r++) {
    s.clocks.push_back(
        static_cast<Nanos>(clocks.below(1ull << clocks.below(61))));  // up to 36 years
  }
  while (!flavour.faultless && rng.chance(0.2)) {
    s.pauses.push_back({static_cast<Member>(rng.below(s.ranks)),
                        static_cast<Nanos>(rng.below(20 * kMilli)),
                        static_cast<Nanos>(rng.below(3 * kSecond))});
  }
  return s;
}

}  // namespace mcast::test
