// The driver: deliver what is due, poll every lane, jump to the next deadline or delivery.
#include "support/cluster.h"

#include <algorithm>

namespace mcast::test {

std::string OpRun::check(uint32_t size) const {
  if (memory && !memory->intact()) return "guard bytes overwritten";
  if (kind == wire::Kind::kBarrier) return "";
  const uint32_t blocks = kind == wire::Kind::kAllgather ? size : 1;
  for (uint32_t b = 0; b < blocks; b++) {
    const uint32_t from = kind == wire::Kind::kAllgather ? b : root;
    for (size_t i = 0; i < block; i++) {
      if (memory->data()[b * block + i] != pattern(id, from, i)) {
        return "wrong byte " + std::to_string(i) + " of block " + std::to_string(b) + " at rank " +
               std::to_string(rank) + " of op " + std::to_string(id);
      }
    }
  }
  return "";
}

Cluster::Cluster(const ClusterOptions& options) : options_(options), net_(options.net) {
  for (uint32_t r = 0; r < options.ranks; r++) {
    lanes_.push_back(std::make_unique<Lane>(net_.attach()));
  }
  paused_.assign(options.ranks, false);
  add_group(options.group);
}

size_t Cluster::add_group(const GroupParams& base) {
  const size_t g = groups_.size();
  const MulticastAddress address{static_cast<uint32_t>(g + 1), 7000, false};
  groups_.emplace_back();
  uint32_t ready = 0;
  for (uint32_t r = 0; r < options_.ranks; r++) {
    GroupParams params = base;
    params.self = static_cast<Member>(r);
    params.tag = base.tag + g + 1;
    params.agreed.members = options_.ranks;
    if (params.name.empty()) params.name = "sim" + std::to_string(g);
    std::vector<PeerId> peers;
    for (uint32_t m = 0; m < options_.ranks; m++) {
      peers.push_back(m == r ? kNoPeer
                             : lanes_[r]->transport().stream().add_peer(
                                   lanes_[m]->transport().stream().address(false)));
    }
    (void)lanes_[r]->transport().datagram().join(address);
    groups_[g].push_back(&lanes_[r]->add_group(params, address, true, peers, now_));
    groups_[g].back()->core().start_probe(now_, [&ready](const Status&) { ready++; });
  }
  run([&] { return ready == options_.ranks; });
  return g;
}

std::shared_ptr<OpRun> Cluster::post(Member rank, std::shared_ptr<OpRun> run,
                                     wire::Descriptor descriptor, Nanos timeout, size_t g) {
  GroupCore& core = groups_[g][rank]->core();
  Post post;
  post.sequence = core.next_sequence();
  post.descriptor = descriptor;
  post.posted = now_;
  post.timeout = timeout;
  if (run->memory) {
    auto region = std::make_shared<Region>(run->memory->data(), run->memory->size(), run->memory);
    const uint32_t slots = run->kind == wire::Kind::kAllgather ? options_.ranks : 1;
    for (uint32_t s = 0; s < slots; s++) post.outputs.push_back({region, s * run->block, run->block});
    if (run->kind == wire::Kind::kAllgather) post.input = post.outputs[rank];
    if (run->kind == wire::Kind::kBroadcast && run->root == rank) post.input = post.outputs[0];
  }
  post.done = [this, run](const Status& status) {
    run->calls++;
    run->status = status;
    run->done_at = now_;
  };
  core.post(std::move(post), now_);
  return run;
}

std::shared_ptr<OpRun> Cluster::broadcast(Member rank, Member root, size_t bytes, uint64_t id,
                                          Nanos timeout, size_t g) {
  auto run = std::make_shared<OpRun>();
  *run = {wire::Kind::kBroadcast, id, root, rank, bytes, std::make_shared<Guarded>(bytes), 0, {}, 0};
  if (rank == root) {
    for (size_t i = 0; i < bytes; i++) run->memory->data()[i] = pattern(id, root, i);
  }
  return post(rank, run, {wire::Kind::kBroadcast, 6, root, bytes, ""}, timeout, g);
}

std::shared_ptr<OpRun> Cluster::allgather(Member rank, size_t block, uint64_t id, Nanos timeout,
                                          size_t g) {
  auto run = std::make_shared<OpRun>();
  *run = {wire::Kind::kAllgather, id, 0, rank, block,
          std::make_shared<Guarded>(block * options_.ranks), 0, {}, 0};
  for (size_t i = 0; i < block; i++) run->memory->data()[rank * block + i] = pattern(id, rank, i);
  return post(rank, run, {wire::Kind::kAllgather, 6, kNoMember, block, ""}, timeout, g);
}

std::shared_ptr<OpRun> Cluster::barrier(Member rank, Nanos timeout, size_t g) {
  auto run = std::make_shared<OpRun>();
  run->rank = rank;
  return post(rank, run, {wire::Kind::kBarrier, 0xff, kNoMember, 0, ""}, timeout, g);
}

Nanos Cluster::next_time() const {
  Nanos next = net_.next_event();
  for (uint32_t r = 0; r < lanes_.size(); r++) {
    if (!paused_[r]) next = std::min(next, lanes_[r]->deadline(now_));
  }
  return next;
}

void Cluster::step() {
  if (!busy_) now_ = std::max(now_ + 1, std::min(next_time(), now_ + 10 * kMilli));
  // A busy lane's next turn comes a little later: polling takes time too.
  if (busy_) now_ += 2 * kMicro;
  net_.advance(now_);
  busy_ = false;
  for (uint32_t r = 0; r < lanes_.size(); r++) {
    if (!paused_[r]) busy_ = lanes_[r]->poll(now_) || busy_;
  }
}

uint64_t Cluster::total(Counter c, size_t g) const {
  uint64_t sum = 0;
  for (const LaneGroup* group : groups_[g]) sum += group->counters().get(c);
  return sum;
}

}  // namespace mcast::test
