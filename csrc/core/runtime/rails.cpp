// All parts of an operation are posted at once; data flows between them by readable ends. Data from
// a rail raises the readable end of a region over the output's memory, which is the source of the
// operations among the ranks of the host; on the host of a broadcast's root it is the other way
// round. The host's operations go by pieces, in the order in which the rails deliver: piece by
// piece over all blocks if all roots send at once, otherwise block by block. That order, like
// everything posted here, follows from the descriptor and from the agreement of the whole group.
#include "runtime/rails.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "collective/error_text.h"

namespace mcast {
namespace {

constexpr size_t kLeastBytes = 4u << 20;  // in total; less is not worth two steps
constexpr size_t kLeastPiece = 256u << 10, kMostPiece = 4u << 20;
constexpr size_t kAlign = 64;

size_t round_up(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// Bytes that the ranks of a host copy from each other at once.
size_t piece_of(size_t block) { return std::clamp(round_up(block / 8), kLeastPiece, kMostPiece); }

// The same memory with a separate readable end, at which nothing is ready. (It keeps the memory
// alive, not the other region: see ReduceRun.)
Slice unready(const Slice& memory) {
  auto hold = memory.region ? memory.region->keepalive() : nullptr;
  Slice s{std::make_shared<Region>(memory.data(), memory.length, std::move(hold)), 0,
          memory.length};
  s.region->set_readable(0);
  return s;
}

}  // namespace

Rails::Rails(const Hosts& hosts, Member self, const Agreed& agreed, std::shared_ptr<GroupBase> rail,
             std::shared_ptr<GroupBase> host)
    : Split({std::move(rail), std::move(host)}),
      hosts_(hosts),
      agreed_(agreed),
      here_(static_cast<Member>(hosts.host_of(self))),
      local_(hosts.members(here_)),
      wake_rail_(groups_[0]->waker()),
      wake_host_(groups_[1]->waker()) {
  place_ = static_cast<Member>(std::find(local_.begin(), local_.end(), self) - local_.begin());
  agreed_.members = hosts.count();
  agreed_.share = static_cast<uint32_t>(local_.size());
  names_ = names();
}

bool Rails::carries(const wire::Descriptor& d) const {
  if (d.kind == wire::Kind::kBroadcast) return d.bytes >= kLeastBytes;
  return d.kind == wire::Kind::kAllgather && d.bytes * hosts_.members() >= kLeastBytes;
}

void Rails::post_parts(const Post& whole, const std::shared_ptr<Parts>& parts) {
  if (whole.descriptor.kind == wire::Kind::kAllgather) {
    post_allgather(whole, parts);
  } else {
    post_broadcast(whole, parts);
  }
}

std::string Rails::streams_text() const {
  return "one rank per host (" + std::to_string(hosts_.count()) + ")";
}

std::string Rails::names() const {
  std::string on_rail;
  for (uint32_t h = 0; h < hosts_.count(); h++) {
    on_rail += (h == 0 ? "" : ", ") + std::to_string(rank_on_rail(h));
  }
  return "ranks of '" + rail().stats().name + "': " + on_rail + "; of '" + host().stats().name +
         "': " + mcast::ranks_text(local_);
}

void Rails::add_to(GroupStats& stats) const {
  const GroupStats on_rail = rail().stats();
  add_counters(stats, on_rail);
  add_counters(stats, host().stats());
  for (size_t h = 0; h < on_rail.repair_from_to.size(); h++) {
    auto& [received, sent] = stats.repair_from_to[rank_on_rail(static_cast<uint32_t>(h))];
    received += on_rail.repair_from_to[h].first;
    sent += on_rail.repair_from_to[h].second;
  }
}

void Rails::post_allgather(const Post& whole, const std::shared_ptr<Parts>& parts) {
  const wire::Descriptor& d = whole.descriptor;
  const size_t block = d.bytes, piece = piece_of(block);
  const uint32_t hosts = hosts_.count();
  // Our rail's blocks, by host, as readable by the neighbours.
  std::vector<Slice> ours(hosts);
  Post on_rail;
  on_rail.descriptor = d;
  on_rail.posted = whole.posted;
  on_rail.input = whole.input;
  for (uint32_t h = 0; h < hosts; h++) {
    on_rail.outputs.push_back(whole.outputs[rank_on_rail(h)]);
    ours[h] = h == here_ ? whole.input : unready(on_rail.outputs[h]);
  }
  std::vector<Member> ranks(hosts);
  for (uint32_t h = 0; h < hosts; h++) ranks[h] = rank_on_rail(h);
  on_rail.completed_step = whole.on_completed ? std::min(piece, whole.completed_step) : piece;
  on_rail.on_completed = [ours, ranks, on_completed = whole.on_completed, wake = wake_host_](
                             uint32_t h, uint64_t bytes) {
    ours[h].region->set_readable(bytes);
    wake();
    if (on_completed) on_completed(ranks[h], bytes);
  };
  part(rail(), std::move(on_rail), parts);

  const auto take = [&](uint32_t h, size_t offset) {
    const size_t length = std::min(piece, block - offset);
    Post p;
    p.descriptor = d;
    p.descriptor.bytes = length;
    p.posted = whole.posted;
    p.input = within(ours[h], offset, length);
    for (size_t i = 0; i < local_.size(); i++) {
      p.outputs.push_back(
          i == place_ ? p.input : within(whole.outputs[hosts_.members(h)[i]], offset, length));
    }
    if (whole.on_completed) {
      p.completed_step = whole.completed_step;
      p.on_completed = [on_completed = whole.on_completed, members = hosts_.members(h), offset](
                           uint32_t i, uint64_t bytes) {
        on_completed(members[i], offset + bytes);
      };
    }
    part(host(), std::move(p), parts);
  };
  const bool in_turns = make_plan(d, agreed_).chains < hosts;
  if (in_turns) {
    for (uint32_t i = 0; i < hosts; i++) {
      // Our host's block is ready at once, the others arrive in order.
      const uint32_t h = i == 0 ? here_ : i <= here_ ? i - 1 : i;
      for (size_t at = 0; at < block; at += piece) take(h, at);
    }
    return;
  }
  for (size_t at = 0; at < block; at += piece) {
    for (uint32_t i = 0; i < hosts; i++) take((here_ + i) % hosts, at);
  }
}

// Determines the root of a broadcast and this rank's part of it.
Rails::Broadcast Rails::cut(const Post& whole) const {
  const wire::Descriptor& d = whole.descriptor;
  Broadcast b{whole, Shares(d.bytes, local_.size())};
  b.piece = piece_of(b.shares.share);
  b.from = static_cast<Member>(hosts_.host_of(d.root));
  b.with_root = b.from == here_;
  const auto& theirs = hosts_.members(b.from);
  b.root = static_cast<Member>(std::find(theirs.begin(), theirs.end(), d.root) - theirs.begin());
  const bool is_root = b.with_root && b.root == place_;
  // Source of our part: the root's memory, or data from another rank.
  b.memory = is_root ? whole.input : whole.outputs[0];
  const size_t length = b.shares.lengths[place_];
  b.ours = within(b.memory, place_ * b.shares.share, length);
  if (!is_root && length > 0) b.ours = unready(b.ours);
  if (whole.on_completed && !is_root) {
    auto prefix = std::make_shared<Prefix>(
        b.shares.lengths,
        [on_completed = whole.on_completed](uint64_t bytes) { on_completed(0, bytes); });
    b.on_completed = [prefix](size_t i, uint64_t bytes) { prefix->raise(i, bytes); };
  }
  return b;
}

// Our part, between the hosts.
Post Rails::broadcast_on_rail(const Broadcast& b) const {
  Post p;
  p.descriptor = b.whole.descriptor;
  p.descriptor.root = b.from;
  p.descriptor.bytes = b.shares.lengths[place_];
  p.posted = b.whole.posted;
  if (b.with_root) {
    p.input = b.ours;
    p.outputs = {b.ours};
    return p;
  }
  p.outputs = {within(b.memory, place_ * b.shares.share, b.shares.lengths[place_])};
  p.completed_step = b.piece;
  p.on_completed = [ours = b.ours, on_completed = b.on_completed, place = place_,
                    wake = wake_host_](uint32_t, uint64_t bytes) {
    ours.region->set_readable(bytes);
    wake();
    if (on_completed) on_completed(place, bytes);
  };
  return p;
}

// A piece of rail `i`'s part from `at` on, between the ranks of our host.
Post Rails::broadcast_on_host(const Broadcast& b, size_t i, size_t at) const {
  const size_t length = std::min(b.piece, b.shares.lengths[i] - at);
  const size_t offset = i * b.shares.share + at;
  Post p;
  p.descriptor = b.whole.descriptor;
  p.descriptor.root = b.with_root ? b.root : static_cast<Member>(i);
  p.descriptor.bytes = length;
  p.posted = b.whole.posted;
  if (p.descriptor.root == place_) {
    p.input = b.with_root ? within(b.whole.input, offset, length) : within(b.ours, at, length);
    p.outputs = {p.input};
    return p;
  }
  p.outputs = {within(b.memory, offset, length)};
  const bool feeds = b.with_root && i == place_;
  if (!feeds && !b.on_completed) return p;
  p.completed_step = b.piece;
  p.on_completed = [feeds, ours = b.ours, on_completed = b.on_completed, i, at, wake = wake_rail_](
                       uint32_t, uint64_t bytes) {
    if (feeds) {
      ours.region->set_readable(at + bytes);
      wake();
    }
    if (on_completed) on_completed(i, at + bytes);
  };
  return p;
}

void Rails::post_broadcast(const Post& whole, const std::shared_ptr<Parts>& parts) {
  const Broadcast b = cut(whole);
  if (b.shares.lengths[place_] > 0) part(rail(), broadcast_on_rail(b), parts);
  for (size_t at = 0; at < b.shares.share; at += b.piece) {
    for (size_t i = 0; i < local_.size(); i++) {
      if (at < b.shares.lengths[i]) part(host(), broadcast_on_host(b, i, at), parts);
    }
  }
}

}  // namespace mcast
