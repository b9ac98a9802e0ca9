// Values are drawn from small sets that contain the extremes. Each part of a plan has its own
// random numbers, so that a change of one part leaves the others as they are.
#include "sim/swarm/generate.h"

#include <algorithm>

#include "base/rng.h"
#include "sim/swarm/draw.h"
#include "sim/swarm/generate_aggregators.h"
#include "sim/swarm/generate_ends.h"
#include "sim/swarm/generate_exchanges.h"
#include "sim/swarm/generate_messages.h"
#include "sim/swarm/generate_paths.h"

namespace mcast::sim {

namespace {

Nanos up_to(Rng& rng, Nanos most) {
  return static_cast<Nanos>(rng.below(static_cast<uint64_t>(most) + 1));
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : seed_(seed) {}
  Plan run();

 private:
  Rng part(uint64_t number) const { return Rng(mix64(seed_ * 0x9e3779b97f4a7c15ULL + number)); }
  uint32_t any_rank(Rng& rng) const { return static_cast<uint32_t>(rng.below(plan_.ranks())); }
  uint32_t other_rank(uint32_t than, Rng& rng) const {
    return static_cast<uint32_t>((than + 1 + rng.below(plan_.ranks() - 1)) % plan_.ranks());
  }
  // When a fault begins: at once, while groups are made, or while operations run.
  static Nanos some_time(Rng& rng) {
    return up_to(rng, one_of<Nanos>(rng, {0, kMilli, 10 * kMilli, 10 * kMilli, 200 * kMilli}));
  }

  void draw_size();
  void draw_world();
  void draw_settings();
  void draw_security();
  void draw_special();
  void draw_groups();
  void draw_ops(size_t g, size_t budget, Rng& rng);
  void draw_large(size_t g, Rng& rng);
  void draw_long(size_t g, Rng& rng);
  void put_in(const PlannedOp& op, Rng& rng);
  void draw_op(PlannedOp& op, size_t members, size_t share, Rng& rng) const;
  uint64_t draw_bytes(Rng& rng, uint64_t most) const;
  void draw_network_faults();
  void draw_silences();
  void draw_fatal();
  void tame_large();
  void draw_one_fatal(Rng& rng);
  PlannedFault& add(FaultKind kind, Rng& rng);

  const uint64_t seed_;
  Plan plan_;
  uint64_t chunk_ = 1408;
  Nanos patience_ = kSecond;  // liveness limit by the fastest clock
  bool measured_ = false;     // a receiver's queue can only fill with data sent without credit
};

PlannedFault& Generator::add(FaultKind kind, Rng& rng) {
  PlannedFault& fault = plan_.faults.emplace_back();
  fault.what = kind;
  fault.at = some_time(rng);
  return fault;
}

// ---- the world ----

void Generator::draw_size() {
  Rng rng = part(1);
  PlannedWorld& w = plan_.world;
  w.seed = seed_;
  uint32_t ranks = static_cast<uint32_t>(2 + rng.below(11));
  if (rng.chance(0.1)) ranks = static_cast<uint32_t>(2 + rng.below(39));
  if (rng.chance(0.01)) ranks = 128;
  w.ranks = ranks >= 4 && rng.chance(0.2) ? one_of<uint32_t>(rng, {2, 2, 3, 4}) : 1;
  w.hosts = std::max<uint32_t>(1, ranks / w.ranks);
  if (w.hosts >= 4 && rng.chance(0.3)) {
    w.topology = one_of<std::string>(
        rng, {"leafspine:leaves=2,spines=1", "leafspine:leaves=2,spines=2,links=2",
              "leafspine:leaves=4,spines=2", "leafspine:leaves=3,spines=3"});
    if (rng.chance(0.25)) w.topology = w.hosts <= 16 ? "fattree:radix=4" : "fattree:radix=8";
  }
}

void Generator::draw_world() {
  Rng rng = part(2);
  PlannedWorld& w = plan_.world;
  w.rate = one_of<double>(rng, {1.25e9, 1.25e9, 1.25e8, 1.25e10, 2e7});
  w.delay = one_of<Nanos>(rng, {5 * kMicro, 5 * kMicro, kMicro, 200 * kMicro});
  chunk_ = one_of<uint64_t>(rng, {64, 256, 1408, 1408, 4096, 8896});
  w.datagram = chunk_ + 32;
  w.budget = one_of<uint64_t>(rng, {4u << 20, 1u << 20, 133120, 32768});
  w.budget = std::max<uint64_t>(w.budget, 8 * chunk_);
  if (rng.chance(0.5)) w.train = one_of<uint32_t>(rng, {1, 4, 16});
  if (rng.chance(0.25)) w.jitter = one_of<Nanos>(rng, {5 * kMicro, 100 * kMicro});
  if (rng.chance(0.5)) w.command = 50 * kMicro;
  if (rng.chance(0.3)) w.wake = one_of<Nanos>(rng, {0, 5 * kMicro, 500 * kMicro});
  if (rng.chance(0.3)) w.gathers = 1;
  if (rng.chance(0.3)) w.queue = one_of<uint64_t>(rng, {32768, 131072, 1u << 20});
  if (w.queue == 0 && rng.chance(0.2)) w.lossless = one_of<uint64_t>(rng, {32768, 262144});
  if (rng.chance(0.25)) w.interface = one_of<uint64_t>(rng, {16384, 65536, 262144});
  if (rng.chance(0.3)) w.send_queue = one_of<uint64_t>(rng, {16384, 1u << 20});
  if (rng.chance(0.3)) w.nic_queues = 2;
  // Memory that Linux charges a socket for a datagram besides its bytes (sim_options.h).
  if (rng.chance(0.5)) w.bookkeeping = kLinuxBookkeeping;
}

void Generator::draw_settings() {
  Rng rng = part(3);
  const auto maybe = [&](const char* name, std::initializer_list<const char*> values) {
    if (rng.chance(0.3)) plan_.settings.push_back({name, one_of(rng, values)});
  };
  const char* const limit = one_of(rng, {"20000", "20000", "5000", "2000"});
  plan_.settings.push_back({"liveness_limit", limit});
  patience_ = std::stol(limit) * kMilli;
  maybe("window", {"4096", "65536", "1000000"});
  maybe("eager", {"0", "1", "4096", "1048576"});
  maybe("chains", {"1", "2", "3", "64"});
  maybe("arity", {"2", "3", "4"});
  maybe("staging", {"0", "4096", "65536"});
  maybe("retransmit", {"65536", "131072"});
  maybe("incast", {"65536", "262144"});
  maybe("port_queue", {"65536", "262144"});
  maybe("reorder", {"1", "8", "100"});
  maybe("cutoff", {"0.2", "20", "0.02"});
  maybe("fold", {"turn"});
  maybe("lane_policy", {"gather"});
  maybe("probe_timeout", {"50", "500"});
  maybe("linger", {"0", "100"});
  if (rng.chance(0.1)) plan_.settings.push_back({"link_rate", one_of(rng, {"100mbit", "10gbit"})});
  if (plan_.world.ranks > 1 && rng.chance(0.7)) {
    plan_.settings.push_back({"shared_memory", one_of(rng, {"auto", "auto", "slots"})});
  }
  if (plan_.ranks() <= 12 && rng.chance(0.1)) {
    plan_.settings.push_back({"subgroups", one_of(rng, {"2", "3"})});
  }
}

void Generator::draw_security() {
  Rng rng = part(10);
  if (!rng.chance(0.2)) return;
  plan_.settings.push_back({"security", one_of(rng, {"auth", "sealed"})});
  if (rng.chance(0.2)) plan_.settings.push_back({"security_suite", "chacha20poly1305"});
}

void Generator::draw_special() {
  Rng rng = part(4);
  const bool rates = rng.chance(0.3), offsets = rng.chance(0.5), slow = rng.chance(0.3);
  double fastest = 1;
  for (uint32_t rank = 0; rank < plan_.ranks(); rank++) {
    PlannedRank special;
    special.rank = rank;
    if (offsets) special.offset = up_to(rng, Nanos{1} << rng.below(60));
    if (rates && rng.chance(0.3)) special.clock = one_of<double>(rng, {0.1, 10, 0.5, 2});
    if (slow && rng.chance(0.3)) special.slow = one_of<double>(rng, {50, 50, 5});
    if (special.offset == 0 && special.clock == 1 && special.slow == 1) continue;
    fastest = std::max(fastest, special.clock);
    plan_.special.push_back(special);
  }
  patience_ = static_cast<Nanos>(static_cast<double>(patience_) / fastest);
}

// ---- the program ----

void Generator::draw_groups() {
  Rng rng = part(5);
  const size_t groups = one_of<size_t>(rng, {1, 1, 2, 3});
  const size_t budget = one_of<size_t>(rng, {60'000, 60'000, 400'000, 3'000'000}) / groups;
  for (size_t g = 0; g < groups; g++) {
    PlannedGroup group;
    for (uint32_t rank = 0; rank < plan_.ranks(); rank++) group.ranks.push_back(rank);
    if (plan_.ranks() > 2 && rng.chance(g == 0 ? 0.1 : 0.5)) {
      for (size_t i = group.ranks.size(); i > 1; i--) {
        std::swap(group.ranks[i - 1], group.ranks[rng.below(i)]);
      }
      group.ranks.resize(2 + rng.below(group.ranks.size() - 1));
    }
    if (g > 0 && rng.chance(0.5)) group.at = up_to(rng, 50 * kMilli);
    group.ring = rng.chance(0.2);
    group.callbacks = rng.chance(0.3);
    group.early = rng.chance(0.3);
    plan_.groups.push_back(group);
    draw_ops(g, budget, rng);
    if (has_parts(plan_) && rng.chance(0.5)) draw_large(g, rng);
    if (plan_.ranks() <= 12 && groups == 1 && rng.chance(0.4)) draw_long(g, rng);
    if (plan_.ranks() <= 12 && rng.chance(0.2)) draw_exchanges(plan_, g, rng);
  }
}

// Parts of groups carry operations of at least 4 MiB (runtime/rails.cpp, runtime/subgroups.cpp).
void Generator::draw_large(size_t g, Rng& rng) {
  const size_t members = plan_.groups[g].ranks.size();
  if (chunk_ < 1408 || members > 12) return;
  PlannedOp op;
  op.group = static_cast<uint32_t>(g);
  op.kind = rng.chance(0.5) ? wire::Kind::kBroadcast : wire::Kind::kAllgather;
  op.bytes = (4u << 20) + rng.below(1u << 20);
  if (op.kind == wire::Kind::kBroadcast) {
    op.root = static_cast<uint32_t>(rng.below(members));
  } else if (plan_.world.ranks > 1) {
    op.bytes = op.bytes / members + 1;
  }
  op.at = plan_.groups[g].at;
  put_in(op, rng);
}

// An operation larger than receivers and their staging can hold, so that only credit limits the
// sender, with a member that calls it late and is slow afterwards. (The laws do not check queues
// for many of the settings that half of these plans avoid.)
void Generator::draw_long(size_t g, Rng& rng) {
  const size_t members = plan_.groups[g].ranks.size();
  PlannedWorld& w = plan_.world;
  measured_ = rng.chance(0.6);
  if (measured_) {
    w.bookkeeping = 0;
    w.rate = std::max(w.rate, 1.25e9);  // more than the slow rank takes
    w.budget = std::clamp<uint64_t>(w.budget, 40 * members * w.datagram, 1000 * chunk_);
  }
  PlannedOp op;
  op.group = static_cast<uint32_t>(g);
  op.kind = rng.chance(0.5) ? wire::Kind::kBroadcast : wire::Kind::kAllgather;
  op.bytes = std::min<uint64_t>(3 * w.budget, 3000 * chunk_);
  if (op.kind == wire::Kind::kBroadcast) {
    op.root = static_cast<uint32_t>(rng.below(members));
  } else {
    op.bytes = op.bytes / members + 1;
  }
  op.at = plan_.groups[g].at;
  op.late = static_cast<uint32_t>(rng.below(members));
  op.by = op.at + up_to(rng, 20 * kMilli);
  put_in(op, rng);
  const uint32_t rank = plan_.groups[g].ranks[op.late];
  const bool special = std::any_of(plan_.special.begin(), plan_.special.end(),
                                   [&](const PlannedRank& one) { return one.rank == rank; });
  if (!special) plan_.special.push_back({rank, 1, 0, chunk_ > 1408 ? 250.0 : 50.0});
}

void Generator::put_in(const PlannedOp& op, Rng& rng) {
  const auto place = static_cast<ptrdiff_t>(rng.below(plan_.ops.size() + 1));
  plan_.ops.insert(plan_.ops.begin() + place, op);
}

uint64_t Generator::draw_bytes(Rng& rng, uint64_t most) const {
  uint64_t bytes = 0;
  switch (rng.below(8)) {
    case 0:
      bytes = one_of<uint64_t>(rng, {0, 1, 8});
      break;
    case 1:
      bytes = one_of<uint64_t>(rng, {chunk_ - 1, chunk_, chunk_ + 1});
      break;
    case 2:
      bytes = chunk_ * (1 + rng.below(40));
      break;
    case 3:
    case 4:
      bytes = 1 + rng.below(8 * chunk_);
      break;
    default:
      bytes = 1 + rng.below(std::max<uint64_t>(1, most));
      break;
  }
  return std::min({bytes, most, 600 * chunk_});
}

void Generator::draw_op(PlannedOp& op, size_t members, size_t share, Rng& rng) const {
  if (rng.chance(0.25)) return draw_exchange(op, members, rng);
  op.kind = one_of(rng, {wire::Kind::kBroadcast, wire::Kind::kBroadcast, wire::Kind::kAllgather,
                         wire::Kind::kAllgather, wire::Kind::kBarrier, wire::Kind::kReduceScatter,
                         wire::Kind::kAllreduce, wire::Kind::kAllreduce, wire::Kind::kReduce});
  if (wire::is_rooted(op.kind)) op.root = static_cast<uint32_t>(rng.below(members));
  if (op.kind == wire::Kind::kBarrier) return;
  const bool blocks = op.kind == wire::Kind::kAllgather || op.kind == wire::Kind::kReduceScatter;
  op.bytes = draw_bytes(rng, blocks ? share / members : share);
  if (!wire::is_reduction(op.kind)) return;
  do {
    op.element = static_cast<Element>(1 + rng.below(10));
    op.reduction = static_cast<Reduction>(1 + rng.below(9));
  } while (!reducible(op.element, op.reduction));
  op.bytes -= op.bytes % element_size(op.element);
}

void Generator::draw_ops(size_t g, size_t budget, Rng& rng) {
  const size_t members = plan_.groups[g].ranks.size(), count = 1 + rng.below(8);
  const auto pace = one_of<Nanos>(rng, {0, 0, 100 * kMicro, 5 * kMilli});
  const bool late = rng.chance(0.5);
  Nanos at = plan_.groups[g].at;
  for (size_t k = 0; k < count; k++) {
    PlannedOp op;
    op.group = static_cast<uint32_t>(g);
    draw_op(op, members, budget / count / members * 2, rng);
    if (pace > 0) op.at = at += up_to(rng, pace);
    if (late && rng.chance(0.4)) {
      op.late = static_cast<uint32_t>(rng.below(members));
      op.by = at + up_to(rng, one_of<Nanos>(rng, {kMilli, 20 * kMilli, 3 * kSecond}));
    }
    plan_.ops.push_back(op);
  }
}

// ---- faults ----

void Generator::draw_network_faults() {
  Rng rng = part(6);
  const auto maybe = [&](FaultKind kind, double chance) -> PlannedFault* {
    if (!rng.chance(chance)) return nullptr;
    PlannedFault& fault = add(kind, rng);
    if (rng.chance(0.5)) fault.at = 0;
    if (rng.chance(0.4)) fault.length = up_to(rng, 300 * kMilli);
    return &fault;
  };
  if (PlannedFault* const f = maybe(FaultKind::kDrop, 0.5)) {
    f->rate = one_of<double>(rng, {0.001, 0.01, 0.1, 0.3, 0.5});
    f->burst = one_of<double>(rng, {1, 1, 4, 30});
  }
  if (PlannedFault* const f = maybe(FaultKind::kDuplicate, measured_ ? 0 : 0.3)) {
    f->rate = one_of<double>(rng, {0.02, 0.3, 0.9});
    f->burst = one_of<double>(rng, {1, 2});
    f->much = one_of<Nanos>(rng, {0, 100 * kMicro, 5 * kMilli, kSecond});
  }
  if (PlannedFault* const f = maybe(FaultKind::kReorder, 0.3)) {
    f->rate = one_of<double>(rng, {0.02, 0.3});
    f->much = one_of<Nanos>(rng, {100 * kMicro, kMilli, 20 * kMilli});
  }
  if (PlannedFault* const f = maybe(FaultKind::kCorrupt, 0.3)) {
    f->rate = one_of<double>(rng, {0.02, 0.2});
  }
  if (PlannedFault* const f = maybe(FaultKind::kReplay, measured_ ? 0 : 0.3)) {
    f->rate = one_of<double>(rng, {0.02, 0.1});
    f->much = one_of<Nanos>(rng, {kMilli, 50 * kMilli, 2 * kSecond});
  }
  if (PlannedFault* const f = maybe(FaultKind::kLoss, patience_ >= 4 * kSecond ? 0.3 : 0.05)) {
    f->rate = one_of<double>(rng, {0.0001, 0.001, 0.01, 0.03});
    f->burst = one_of<double>(rng, {1, 2, 3});
  }
  if (PlannedFault* const f = maybe(FaultKind::kDelay, 0.2)) {
    f->rank = rng.chance(0.3) ? kNoMember : any_rank(rng);
    f->much = std::min(patience_ / 64, one_of<Nanos>(rng, {200 * kMicro, 5 * kMilli, 50 * kMilli}));
    f->length = up_to(rng, 300 * kMilli);
  }
  if (PlannedFault* const f = maybe(FaultKind::kRefuse, 0.2)) {
    f->rate = one_of<double>(rng, {0.05, 0.5, 0.9});
    f->length = up_to(rng, 500 * kMilli);
  }
  if (PlannedFault* const f = maybe(FaultKind::kForget, 0.3)) {
    f->rate = one_of<double>(rng, {0.2, 0.9});
    f->length = up_to(rng, 2 * kSecond);
  }
  if (PlannedFault* const f = maybe(FaultKind::kMute, 0.3)) {
    f->rank = rng.chance(0.3) ? kNoMember : any_rank(rng);
    f->peer = rng.chance(0.5) ? kNoMember : any_rank(rng);
    if (rng.chance(0.4)) {
      f->every = one_of<Nanos>(rng, {kMilli, 20 * kMilli, 500 * kMilli});
      f->length = up_to(rng, 10 * kSecond);
    }
  }
}

// Faults that heal in time: their total stays below half of any rank's patience.
void Generator::draw_silences() {
  Rng rng = part(7);
  const Nanos most = patience_ / 16;
  if (rng.chance(0.4)) {
    PlannedFault& fault = add(FaultKind::kPause, rng);
    fault.rank = any_rank(rng);
    fault.length = up_to(rng, most);
  }
  if (rng.chance(0.3)) {
    PlannedFault& fault = add(FaultKind::kPause, rng);
    fault.rank = any_rank(rng);
    fault.length = up_to(rng, one_of<Nanos>(rng, {kMilli, most}));
  }
  if (patience_ >= 4 * kSecond && rng.chance(0.3)) {
    PlannedFault& fault = add(FaultKind::kIsolate, rng);
    fault.rank = any_rank(rng);
    fault.length = up_to(rng, most);
  }
  if (patience_ >= 4 * kSecond && rng.chance(0.3)) {
    PlannedFault& fault = add(FaultKind::kCut, rng);
    fault.rank = any_rank(rng);
    if (rng.chance(0.5)) fault.peer = other_rank(fault.rank, rng);
    if (rng.chance(0.6)) fault.lane = static_cast<uint32_t>(rng.below(2));
    fault.length = up_to(rng, 2 * most);
    if (rng.chance(0.2)) fault.every = one_of<Nanos>(rng, {kMilli, 50 * kMilli});
  }
  if (rng.chance(0.2)) {
    PlannedFault& fault = add(FaultKind::kJump, rng);
    fault.rank = any_rank(rng);
    fault.much = up_to(rng, one_of<Nanos>(rng, {kMilli, kSecond, 100 * kSecond}));
  }
}

void Generator::draw_one_fatal(Rng& rng) {
  const auto of_group = [&](FaultKind kind) {
    PlannedFault& fault = add(kind, rng);
    fault.group = static_cast<uint32_t>(rng.below(plan_.groups.size()));
    const auto& ranks = plan_.groups[fault.group].ranks;
    fault.rank = ranks[rng.below(ranks.size())];
    return &fault;
  };
  const auto of_rank = [&](FaultKind kind) {
    PlannedFault& fault = add(kind, rng);
    fault.rank = any_rank(rng);
    return &fault;
  };
  switch (rng.below(9)) {
    case 0:
    case 1:
      of_rank(FaultKind::kKill);
      return;
    case 2:
    case 3: {
      const auto kind = rng.chance(0.5) ? FaultKind::kPause : FaultKind::kIsolate;
      PlannedFault* const fault = of_rank(kind);
      if (rng.chance(0.6)) fault->length = patience_ / 2 + up_to(rng, 2 * patience_);
      return;
    }
    case 4: {
      PlannedFault* const fault = of_rank(FaultKind::kReset);
      fault->peer = other_rank(fault->rank, rng);
      fault->much = one_of<Nanos>(rng, {0, 0, 5 * kMilli, kSecond});
      if (rng.chance(0.3)) fault->lane = static_cast<uint32_t>(rng.below(2));
      return;
    }
    case 5:
      of_group(FaultKind::kAbort);
      return;
    case 6:
      of_group(FaultKind::kClose)->much = one_of<Nanos>(rng, {0, 10 * kMilli, kSecond});
      return;
    case 7: {
      PlannedFault* const fault = of_rank(FaultKind::kCut);
      if (rng.chance(0.7)) fault->peer = other_rank(fault->rank, rng);
      if (rng.chance(0.5)) fault->lane = static_cast<uint32_t>(rng.below(2));
      if (rng.chance(0.4)) fault->length = patience_ / 2 + up_to(rng, 2 * patience_);
      return;
    }
    default: {
      PlannedOp& op = plan_.ops[rng.below(plan_.ops.size())];
      const size_t members = plan_.groups[op.group].ranks.size();
      if (op.bytes == 0 || rng.chance(0.5)) {
        op.timeout = one_of<Nanos>(rng, {kMilli, 100 * kMilli, 2 * kSecond});
      } else {
        op.odd = static_cast<uint32_t>(rng.below(members));
        op.odd_bytes = op.bytes / 2 / 8 * 8;
      }
      return;
    }
  }
}

void Generator::draw_fatal() {
  Rng rng = part(8);
  if (rng.chance(0.5)) return;
  size_t count = 1;
  while (count < 3 && rng.chance(0.3)) count++;
  for (size_t i = 0; i < count; i++) draw_one_fatal(rng);
}

// In a large group each unreachable rank makes all others probe for seconds: some hundred million
// events. Small queues lose most of what so many ranks send at once.
void Generator::tame_large() {
  if (plan_.ranks() <= 40) return;
  plan_.world.queue = plan_.world.interface = 0;
  std::erase_if(plan_.faults, [](const PlannedFault& fault) {
    return fault.what == FaultKind::kMute || fault.what == FaultKind::kIsolate ||
           fault.what == FaultKind::kCut;
  });
}

Plan Generator::run() {
  draw_size();
  draw_world();
  draw_settings();
  draw_security();
  draw_special();
  draw_groups();
  draw_network_faults();
  draw_silences();
  draw_fatal();
  tame_large();
  draw_aggregators(plan_, part(9));
  draw_paths(plan_, part(11));
  draw_noise(plan_, part(12));
  draw_exits(plan_, part(13));
  draw_absence(plan_, part(14));
  draw_messages(plan_, part(15));
  return plan_;
}

}  // namespace

Plan generate(uint64_t seed) { return Generator(seed).run(); }

}  // namespace mcast::sim
