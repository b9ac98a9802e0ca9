// The driver: delivers pending datagrams, polls every lane, and jumps to the next deadline or
// delivery.
#include "support/cluster.h"

#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/rng.h"
#include "crypto/library.h"
#include "sim/network/sim_identity.h"
#include "support/reach.h"

namespace mcast::test {

std::function<std::unique_ptr<Surroundings>(SimNetwork&)>& surround() {
  static std::function<std::unique_ptr<Surroundings>(SimNetwork&)> one;
  return one;
}

size_t exchange_bytes(wire::Kind kind, uint64_t id, size_t block, Member root, uint32_t from,
                      uint32_t to) {
  if (from == to) return 0;
  if (kind == wire::Kind::kGather) return to == root ? block : 0;
  if (kind == wire::Kind::kScatter) return from == root ? block : 0;
  Rng rng(mix64(id) ^ mix64(from * 65536 + to));
  const uint64_t what = rng.below(8);
  return what == 0 ? 0 : what < 4 ? block : rng.below(block + 1);
}

namespace {
uint64_t block_id(uint64_t id, uint32_t to) { return mix64(id * 4096 + to); }
}  // namespace

std::string OpRun::compare_exchange(uint32_t size) const {
  size_t at = 0;
  for (uint32_t from = 0; from < size; from++) {
    const size_t bytes = exchange_bytes(kind, id, block, root, from, rank);
    const ConstBytes there(memory->data() + at, bytes);
    const size_t wrong = check_pattern(block_id(id, rank), from, there);
    at += bytes;
    if (wrong < bytes) {
      return "wrong byte " + std::to_string(wrong) + " of " + std::to_string(bytes) +
             " from rank " + std::to_string(from) + " at rank " + std::to_string(rank) + " of op " +
             std::to_string(id);
    }
  }
  return "";
}

std::string OpRun::compare(uint32_t size) const {
  if (!guards_intact) return "guard bytes overwritten";
  if (wire::is_exchange(kind)) return compare_exchange(size);
  if (kind == wire::Kind::kBarrier) return "";
  if (wire::is_reduction(kind)) {
    if (kind == wire::Kind::kReduce && root != rank) return "";
    const size_t from = kind == wire::Kind::kReduceScatter ? rank * block : 0;
    const auto want = expected(size);
    // In place, the result of a reduce_scatter is a part of the memory.
    const size_t byte = sim::first_difference(element, memory->data() + (input ? 0 : from), want);
    if (byte < want.size()) {
      return "wrong byte " + std::to_string(byte) + " of " + std::to_string(block) + " at rank " +
             std::to_string(rank) + " of op " + std::to_string(id) + " (" +
             reduction_name(reduction) + " of " + element_name(element) + ")";
    }
    return "";
  }
  const uint32_t blocks = kind == wire::Kind::kAllgather ? size : 1;
  for (uint32_t b = 0; b < blocks; b++) {
    const uint32_t from = kind == wire::Kind::kAllgather ? b : root;
    const size_t wrong = check_pattern(id, from, ConstBytes(memory->data() + b * block, block));
    if (wrong < block) {
      return "wrong byte " + std::to_string(wrong) + " of block " + std::to_string(b) +
             " at rank " + std::to_string(rank) + " of op " + std::to_string(id);
    }
  }
  return "";
}

crypto::Mode security_of_environment() {
  const char* const text = std::getenv("MCAST_TEST_SECURITY");
  return crypto::parse_mode(text == nullptr ? "off" : text).value_or(crypto::Mode::kOff);
}

namespace {
// Makes room for the tag of guarded datagrams, so that chunks keep their size.
SimOptions with_room(SimOptions net, crypto::Mode mode) {
  if (mode != crypto::Mode::kOff) net.max_datagram += wire::kGuardedExtra;
  return net;
}
}  // namespace

crypto::Key Cluster::datagram_root(Member r, uint64_t tag) const {
  std::array<std::byte, 32> seed{};
  wire::store<uint64_t>(seed.data(), tag);
  wire::store<uint64_t>(&seed[8], secret_of(r));
  return crypto::derive_key(crypto::Key(seed), "test");
}

std::shared_ptr<crypto::DatagramGuard> Cluster::guard(Member r, const GroupParams& params) {
  if (options_.security == crypto::Mode::kOff) return nullptr;
  EXPECT_TRUE(crypto::load_library().ok());
  crypto::DatagramGuard::Params p;
  p.how = {options_.security, options_.suite, params.lane};
  p.self = r, p.members = options_.ranks;
  p.most_payload = options_.net.max_datagram;
  p.epochs = options_.epochs;
  auto made = crypto::DatagramGuard::make(datagram_root(r, params.tag), p,
                                          std::make_shared<crypto::OpenBudget>(options_.budget));
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

std::unique_ptr<SimTransport> Cluster::attach(crypto::Role role, uint64_t secret) {
  std::unique_ptr<SimTransport> endpoint = net_.attach();
  if (options_.security == crypto::Mode::kOff) return endpoint;
  EXPECT_TRUE(crypto::load_library().ok());
  sim::IdentitySpec spec{options_.security, options_.suite, role, options_.epochs};
  spec.seed = mix64(options_.net.seed * 4096 + endpoint->index());
  sim::GuardOptions guard;
  guard.seed = mix64(spec.seed);
  // Ranks may stop for longer than a TCP connection would allow.
  guard.challenge = std::max(guard.challenge, options_.group.liveness_limit);
  guard.answer = guard.challenge;
  guard.identity = sim::seeded_identity(*sim::seeded_secret(secret, role).value(), spec).value();
  endpoint->guard(guard);
  return endpoint;
}

Cluster::Cluster(const ClusterOptions& options)
    : options_(options), net_(with_room(options.net, options.security)) {
  if (surround() && !options.transport) surroundings_ = surround()(net_);
  for (uint32_t r = 0; r < options.ranks; r++) {
    std::unique_ptr<Transport> medium =
        options.transport ? options.transport()
                          : attach(crypto::Role::kRank, secret_of(static_cast<Member>(r)));
    if (options.wrap) medium = options.wrap(std::move(medium));
    if (surroundings_) medium = surroundings_->wrap(std::move(medium), r);
    lanes_.push_back(std::make_unique<Lane>(
        std::move(medium),
        options.accounts ? options.accounts(static_cast<Member>(r)) : LaneAccounts()));
  }
  if (options.prepare) options.prepare(net_);
  paused_.assign(options.ranks, false);
  killed_.assign(options.ranks, false);
  left_over_.assign(options.ranks, true);
  spins_.assign(options.ranks, 0);
  for (uint32_t r = 0; r < options.ranks; r++) {
    ahead_.push_back(options.clock ? options.clock(static_cast<Member>(r)) : 0);
  }
  add_group(options.group);
}

Cluster::~Cluster() {
  for (const auto& counters : counters_) add_reach(*counters);
  for (const auto& lane : lanes_) {
    add_reach(Counter::foreign, lane->foreign());
    add_reach(Counter::neighbour, lane->neighbour());
    add_reach(Counter::late, lane->late());
    add_reach(Counter::malformed, lane->malformed());
    add_reach(Counter::fragmented, lane->transport().datagram().fragmented());
  }
}

size_t Cluster::add_group(const GroupParams& base, Nanos limit) {
  const size_t g = groups_.size();
  const bool one = options_.one_address;
  const MulticastAddress address{one ? 1 : static_cast<uint32_t>(g + 1),
                                 static_cast<uint16_t>(one ? 7000 + 2 * g : 7000), false};
  groups_.emplace_back(options_.ranks, nullptr);
  auto ready = std::make_shared<uint32_t>(0);
  for (Member r = 0; r < options_.ranks; r++) {
    GroupParams params = base;
    params.self = r;
    params.tag = base.tag + g + 1;
    if (options_.problem) params.multicast.problem = options_.problem(r);
    params.agreed.members = options_.ranks;
    params.agreed.guard = options_.security == crypto::Mode::kOff ? 0 : wire::kGuardedExtra;
    if (!params.host_of.empty()) {
      params.agreed.contributors = Hosts(params.host_of).count();
      params.read_host.read = [this, r, host_of = params.host_of](Member from, uint64_t at,
                                                                  std::byte* to, size_t length) {
        EXPECT_EQ(host_of[r], host_of[from]);
        if (killed_[from]) return false;
        // Reads as from another process: unmapped memory is an error, not a fault.
        iovec local{to, length}, remote{reinterpret_cast<void*>(at), length};
        return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length);
      };
    }
    if (!options_.racks.empty()) {
      params.agreed.racks = params.host_of.empty()
                                ? Racks(options_.racks)
                                : racks_of_hosts(Hosts(params.host_of), options_.racks);
    }
    if (params.name.empty()) params.name = "sim" + std::to_string(g);
    params.multicast.guard = guard(r, params);
    const auto enter = [=, this] {
      join(r, g, params, address, [=, this](const Status& how) {
        made_[{r, g}] = how;
        ++*ready;
      });
    };
    const Nanos delay = options_.join_delay ? options_.join_delay(r) : 0;
    if (delay == 0) {
      enter();
    } else if (delay != kNever) {
      at(now_ + delay, enter);
    }
  }
  run([&] { return *ready == options_.ranks; }, limit);
  return g;
}

void Cluster::join(Member r, size_t g, GroupParams params, const MulticastAddress& address,
                   std::function<void(const Status&)> ready) {
  std::vector<PeerId> peers;
  GroupAddress at{address, true};
  for (uint32_t m = 0; m < options_.ranks; m++) {
    const StreamAddress its = lanes_[m]->transport().stream().address(false);
    peers.push_back(m == r ? kNoPeer : lanes_[r]->transport().stream().add_peer(its));
    at.sources.push_back(lanes_[r]->transport().datagram().sources_of(its));
    at.hosts.insert(at.hosts.end(), at.sources.back().begin(), at.sources.back().end());
  }
  (void)lanes_[r]->transport().datagram().join(address);
  counters_.push_back(std::make_shared<Counters>());
  groups_[g][r] =
      &lanes_[r]->add_group(std::move(params), at, std::move(peers), clock(r), counters_.back());
  groups_[g][r]->core().start_probe(clock(r), std::move(ready));
}

std::shared_ptr<OpRun> Cluster::call(Member rank, const wire::Descriptor& descriptor, uint64_t id,
                                     Nanos timeout, size_t g, std::function<void()> then) {
  auto run = std::make_shared<OpRun>();
  run->kind = descriptor.kind;
  run->id = id;
  run->root = descriptor.root;
  run->rank = rank;
  run->block = descriptor.bytes;
  GroupCore& core = groups_[g][rank]->core();
  Post post;
  post.sequence = core.next_sequence();
  post.descriptor = descriptor;
  post.posted = clock(rank);
  post.timeout = timeout;
  if (wire::is_reduction(run->kind)) {
    fill_reduction(core, *run, post);
  } else if (wire::is_exchange(run->kind)) {
    fill_exchange(*run, post);
  } else if (run->kind != wire::Kind::kBarrier) {
    fill_streams(*run, post);
  }
  post.done = [this, run, then = std::move(then)](const Status& status) {
    run->calls++;
    run->status = status;
    run->done_at = now_;
    // From now on the caller owns the memory and may change or reuse it.
    run->guards_intact =
        (!run->memory || run->memory->intact()) && (!run->input || run->input->intact());
    if (absent) run->folding.absent = absent(run->sequence);
    run->verdict = run->compare(options_.ranks);
    if (at_done) at_done(*run);
    // While a medium that refuses sends still holds a gathered datagram, its memory may be repaired
    // and read late.
    const bool read_late = options_.wrap && options_.net.gather_from != SIZE_MAX;
    if (run->memory) run->memory->give_back(read_late);
    if (run->input) run->input->give_back(read_late);
    if (then) then();
  };
  if (adjust) adjust(rank, post);
  run->sequence = post.sequence;
  core.post(std::move(post), clock(rank));
  core.deliver();  // as a lane does after its poll
  return run;
}

void Cluster::fill_reduction(const GroupCore& core, OpRun& run, Post& post) const {
  run.element = static_cast<Element>(post.descriptor.element);
  run.reduction = static_cast<Reduction>(post.descriptor.reduction);
  run.folding.racks = options_.racks;
  run.folding.in_turn = core.params().agreed.fold == FoldOrder::kTurn;
  const bool scatter = run.kind == wire::Kind::kReduceScatter;
  if (make_plan(post.descriptor, core.params().agreed, element_size(run.element)).reduce.way !=
      ReduceWay::kOneStep) {
    run.folding.host_of = core.params().host_of;
  }
  const uint32_t blocks = scatter ? options_.ranks : 1;
  const size_t whole = blocks * run.block;
  auto input = std::make_shared<Guarded>(whole);
  fill_pattern(run.id, run.rank, Bytes(input->data(), whole));
  auto from = std::make_shared<Region>(input->data(), whole, input);
  ReduceArgs args{run.element, run.reduction, factor_of(run.rank), {}, {}};
  for (uint32_t m = 0; m < blocks; m++) args.inputs.push_back({from, m * run.block, run.block});
  const bool target = run.kind != wire::Kind::kReduce || run.root == run.rank;
  if (run.id % 2 == 0) {  // in place
    run.memory = input;
    if (target) args.output = args.inputs[scatter ? run.rank : 0];
  } else {
    run.input = input;
    run.memory = std::make_shared<Guarded>(run.block);
    auto to = std::make_shared<Region>(run.memory->data(), run.block, run.memory);
    if (target) args.output = {to, 0, run.block};
  }
  post.reduce = std::move(args);
}

void Cluster::fill_streams(OpRun& run, Post& post) const {
  const bool all = run.kind == wire::Kind::kAllgather;
  const uint32_t streams = all ? options_.ranks : 1;
  run.memory = std::make_shared<Guarded>(streams * run.block);
  auto region = std::make_shared<Region>(run.memory->data(), run.memory->size(), run.memory);
  for (uint32_t s = 0; s < streams; s++) post.outputs.push_back({region, s * run.block, run.block});
  if (all || run.root == run.rank) {
    post.input = post.outputs[all ? run.rank : 0];
    fill_pattern(run.id, run.rank, Bytes(post.input.data(), run.block));
  }
}

void Cluster::fill_exchange(OpRun& run, Post& post) const {
  const auto total = [&](bool out) {
    size_t sum = 0;
    for (uint32_t m = 0; m < options_.ranks; m++) {
      sum += exchange_bytes(run.kind, run.id, run.block, run.root, out ? run.rank : m,
                            out ? m : run.rank);
    }
    return sum;
  };
  run.input = std::make_shared<Guarded>(total(true));
  run.memory = std::make_shared<Guarded>(total(false));
  const auto region = [](const std::shared_ptr<Guarded>& memory) {
    return std::make_shared<Region>(memory->data(), memory->size(), memory);
  };
  const auto source = region(run.input), target = region(run.memory);
  ExchangeArgs args;
  size_t out = 0, in = 0;
  for (uint32_t m = 0; m < options_.ranks; m++) {
    const size_t there = exchange_bytes(run.kind, run.id, run.block, run.root, run.rank, m);
    fill_pattern(block_id(run.id, m), run.rank, Bytes(run.input->data() + out, there));
    args.inputs.push_back({source, std::exchange(out, out + there), there});
    const size_t here = exchange_bytes(run.kind, run.id, run.block, run.root, m, run.rank);
    args.outputs.push_back({target, std::exchange(in, in + here), here});
  }
  if (run.kind == wire::Kind::kAllToAll) post.descriptor.bytes = 0;
  post.exchange = std::move(args);
}

std::shared_ptr<OpRun> Cluster::exchange(Member rank, wire::Kind kind, Member root, size_t bytes,
                                         uint64_t id, Nanos timeout, size_t g) {
  const bool rooted = wire::is_rooted(kind);
  return call(rank, {kind, 6, rooted ? root : kNoMember, bytes, ""}, id, timeout, g);
}

std::shared_ptr<OpRun> Cluster::broadcast(Member rank, Member root, size_t bytes, uint64_t id,
                                          Nanos timeout, size_t g) {
  return call(rank, {wire::Kind::kBroadcast, 6, root, bytes, ""}, id, timeout, g);
}

std::shared_ptr<OpRun> Cluster::allgather(Member rank, size_t block, uint64_t id, Nanos timeout,
                                          size_t g) {
  return call(rank, {wire::Kind::kAllgather, 6, kNoMember, block, ""}, id, timeout, g);
}

std::shared_ptr<OpRun> Cluster::reduction(Member rank, wire::Kind kind, Member root, size_t bytes,
                                          uint64_t id, Nanos timeout, size_t g) {
  wire::Descriptor d{kind, static_cast<uint8_t>(Element::kInt32), kNoMember, bytes / 4 * 4, ""};
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  if (kind == wire::Kind::kReduce) d.root = root;
  return call(rank, d, id, timeout, g);
}

std::shared_ptr<OpRun> Cluster::barrier(Member rank, Nanos timeout, size_t g) {
  return call(rank, {wire::Kind::kBarrier, 0xff, kNoMember, 0, ""}, 0, timeout, g);
}

Nanos Cluster::next_time() const {
  Nanos next = std::min(actions_.empty() ? kNever : actions_.begin()->first, nodes_deadline());
  for (uint32_t r = 0; r < lanes_.size(); r++) {
    if (paused_[r]) continue;
    const Nanos due = lanes_[r]->deadline(clock(static_cast<Member>(r)));
    if (due != kNever) next = std::min(next, due - ahead_[r]);
  }
  return next;
}

void Cluster::step(Nanos latest) {
  if (!busy_) {
    const Nanos longest = options_.sleepy ? kSecond : 10 * kMilli;
    const Nanos until = std::max(now_ + 1, std::min({next_time(), now_ + longest, latest}));
    now_ = std::max(now_ + 1, net_.advance_to_arrival(until));
  }
  // A busy lane polls again a little later, since polling takes time too.
  if (busy_) now_ += 2 * kMicro;
  net_.advance(now_);
  while (!actions_.empty() && actions_.begin()->first <= now_) {
    const auto action = std::move(actions_.begin()->second);
    actions_.erase(actions_.begin());
    action();
    left_over_.assign(left_over_.size(), true);
  }
  busy_ = false;
  for (uint32_t r = 0; r < lanes_.size(); r++) {
    if (paused_[r]) continue;
    const Nanos time = clock(static_cast<Member>(r));
    if (options_.sleepy && !left_over_[r] && lanes_[r]->deadline(time) > time) {
      // Ranks with a transport of their own always poll here: nothing waits for them in the
      // network.
      if (!net_.waiting(r) && !(surroundings_ && surroundings_->waiting(r))) continue;
    }
    turns_++;
    const bool more = lanes_[r]->poll(time);
    left_over_[r] = more;
    busy_ = more || busy_;
    const bool overdue = !more && lanes_[r]->deadline(time) <= time;
    spins_[r] = overdue ? spins_[r] + 1 : 0;
    most_spins_ = std::max(most_spins_, spins_[r]);
  }
  busy_ = poll_nodes() || busy_;
}

uint64_t Cluster::total(Counter c, size_t g) const {
  uint64_t sum = 0;
  for (const LaneGroup* group : groups_[g]) sum += group ? group->counters().get(c) : 0;
  return sum;
}

}  // namespace mcast::test
