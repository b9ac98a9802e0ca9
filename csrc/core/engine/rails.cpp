// All parts of an operation are posted at once; data flows between them by readable ends. What a
// rail delivers raises the mark of a region over the output's memory, which is the source of the
// operations among the ranks of the host; on a broadcast root's host it is the other way round. The
// host's operations go by pieces, in the order in which the rails deliver: where all roots send at
// once, piece by piece over all blocks, else block by block. That order, like all that is posted
// here, follows from the descriptor and from what the whole group has agreed on.
#include "engine/rails.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace mcast {
namespace {

constexpr size_t kLeastBytes = 4u << 20;  // in all; less is not worth two steps
constexpr size_t kLeastPiece = 256u << 10, kMostPiece = 4u << 20;
constexpr size_t kAlign = 64;

size_t round_up(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// How much the ranks of a host take from each other at once.
size_t piece_of(size_t block) { return std::clamp(round_up(block / 8), kLeastPiece, kMostPiece); }

// The same memory with a mark of its own, of which nothing is ready. (It holds the memory, not the
// other region: see ReduceRun.)
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
  std::string on_rail, on_host;
  for (uint32_t h = 0; h < hosts_.count(); h++) {
    on_rail += (h == 0 ? "" : ", ") + std::to_string(rank_on_rail(h));
  }
  for (const Member m : local_) on_host += (on_host.empty() ? "" : ", ") + std::to_string(m);
  return "ranks of '" + rail().stats().name + "': " + on_rail + "; of '" + host().stats().name +
         "': " + on_host;
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
  // Our rail's blocks, by host, as the neighbours may read them.
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
  on_rail.on_completed = [ours, ranks, mark = whole.on_completed, wake = wake_host_](
                             uint32_t h, uint64_t bytes) {
    ours[h].region->set_readable(bytes);
    wake();
    if (mark) mark(ranks[h], bytes);
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
      p.on_completed = [mark = whole.on_completed, members = hosts_.members(h), offset](
                           uint32_t i, uint64_t bytes) { mark(members[i], offset + bytes); };
    }
    part(host(), std::move(p), parts);
  };
  const bool in_turns = make_plan(d, agreed_).chains < hosts;
  if (in_turns) {
    for (uint32_t i = 0; i < hosts; i++) {
      // Ours is there at once, the others come in their order.
      const uint32_t h = i == 0 ? here_ : i <= here_ ? i - 1 : i;
      for (size_t at = 0; at < block; at += piece) take(h, at);
    }
    return;
  }
  for (size_t at = 0; at < block; at += piece) {
    for (uint32_t i = 0; i < hosts; i++) take((here_ + i) % hosts, at);
  }
}

void Rails::post_broadcast(const Post& whole, const std::shared_ptr<Parts>& parts) {
  const wire::Descriptor& d = whole.descriptor;
  const size_t rails = local_.size();
  const auto [share, lengths] = Shares(d.bytes, rails);
  const size_t piece = piece_of(share);
  const auto from = static_cast<Member>(hosts_.host_of(d.root));
  const bool with_root = from == here_;
  const auto& theirs = hosts_.members(from);
  const auto root =
      static_cast<Member>(std::find(theirs.begin(), theirs.end(), d.root) - theirs.begin());
  const bool is_root = with_root && root == place_;
  // Of our part: the root's memory, else what another brings.
  const Slice& memory = is_root ? whole.input : whole.outputs[0];
  Slice ours = within(memory, place_ * share, lengths[place_]);
  if (!is_root && ours.length > 0) ours = unready(ours);
  std::function<void(size_t, uint64_t)> mark;
  if (whole.on_completed && !is_root) {
    auto prefix = std::make_shared<Prefix>(
        lengths, [on_completed = whole.on_completed](uint64_t bytes) { on_completed(0, bytes); });
    mark = [prefix](size_t i, uint64_t bytes) { prefix->raise(i, bytes); };
  }
  if (lengths[place_] > 0) {
    Post p;
    p.descriptor = d;
    p.descriptor.root = from;
    p.descriptor.bytes = lengths[place_];
    p.posted = whole.posted;
    if (with_root) p.input = ours;
    p.outputs = {with_root ? ours : within(memory, place_ * share, lengths[place_])};
    if (!with_root) {
      p.completed_step = piece;
      p.on_completed = [ours, mark, place = place_, wake = wake_host_](uint32_t, uint64_t bytes) {
        ours.region->set_readable(bytes);
        wake();
        if (mark) mark(place, bytes);
      };
    }
    part(rail(), std::move(p), parts);
  }
  for (size_t at = 0; at < share; at += piece) {
    for (size_t i = 0; i < rails; i++) {
      if (at >= lengths[i]) continue;
      const size_t length = std::min(piece, lengths[i] - at);
      Post p;
      p.descriptor = d;
      p.descriptor.root = with_root ? root : static_cast<Member>(i);
      p.descriptor.bytes = length;
      p.posted = whole.posted;
      if (p.descriptor.root == place_) {
        p.input =
            with_root ? within(whole.input, i * share + at, length) : within(ours, at, length);
        p.outputs = {p.input};
      } else {
        p.outputs = {within(memory, i * share + at, length)};
        const bool feeds = with_root && i == place_;
        if (feeds || mark) {
          p.completed_step = piece;
          p.on_completed = [feeds, ours, mark, i, at, wake = wake_rail_](uint32_t, uint64_t bytes) {
            if (feeds) {
              ours.region->set_readable(at + bytes);
              wake();
            }
            if (mark) mark(i, at + bytes);
          };
        }
      }
      part(host(), std::move(p), parts);
    }
  }
}

}  // namespace mcast
